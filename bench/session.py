"""A `lockstep run` under measurement: started, asked, hurt and ended by the bench.

What happened when is read from the run's own journal (docs/formats/journal.md), whose times are on CLOCK_BOOTTIME, as are
the bench's own; status comes over the control socket, because starting `lockstep status` for each question would itself
disturb what is measured.
"""
import collections
import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.append(os.path.join(ROOT, "tests"))
from free_port import free_port  # for those that import this

EXAMPLE = os.path.join(ROOT, "examples", "train_gpt.py")
POLL_S = 0.02
PATIENCE_S = 120

# Compiled for the benchmarks alone, beside lockstep itself.
PROGRAMS = ("copy_rate", "fan_out", "wrong_names", "explain_rate", "step_graph_rate", "collect_path", "gloo_path", "telemetry", "stack_groups", "keep_rate", "coordinator_scale",
            "stage_path")
Tools = collections.namedtuple("Tools", ("binary", "python", *PROGRAMS))
Event = collections.namedtuple("Event", "sequence at type payload")


def boottime_ns():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def wait_for(question, what, patience_s=PATIENCE_S):
    """The first answer of `question()` that is not None. TimeoutError names `what` did not come."""
    deadline = time.monotonic() + patience_s
    while (answer := question()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {patience_s} s")
        time.sleep(POLL_S)
    return answer


def job(name):
    return os.path.join(HERE, "jobs", name)


class Lines:
    """Stamps every line that a job writes to `path`, a FIFO, at the moment it arrives: any script with a log can be timed."""

    def __init__(self, path):
        self.path = path
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDWR)  # both ends: the FIFO outlives the writers that come and go
        self.all = []                       # (CLOCK_BOOTTIME ns, JSON)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        with open(self.fd, closefd=False) as lines:
            for line in lines:
                if line == "end\n":
                    return
                self.all.append((boottime_ns(), json.loads(line)))

    def first(self, accept):
        """The first (at, line) that `accept(at, line)` takes, or None."""
        return next(((at, line) for at, line in list(self.all) if accept(at, line)), None)

    def close(self):
        os.write(self.fd, b"end\n")
        self.thread.join()
        os.close(self.fd)


class Session:
    """with Session(tools, [script, *args], ranks=4) as session: ...  Ends the job and removes its directory at the end."""

    def __init__(self, tools, command, ranks=4, options=()):
        self.folder = tempfile.mkdtemp(prefix="lockstep-bench-")
        self.run_dir = os.path.join(self.folder, "run")
        self.output = open(os.path.join(self.folder, "output.txt"), "w")
        self.process = subprocess.Popen(
            [tools.binary, "run", "--nproc-per-node", str(ranks), "--python", tools.python, "--run", self.run_dir, "--no-view",
             "--grace-s", "1", *options, *command],
            stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output, start_new_session=True)
        self.ranks = ranks

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.output.close()
        if self.process.poll() is None:
            self.ask("stop")
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f"bench: what the run left behind is in {self.folder}")

    def said(self):
        with open(self.output.name) as file:
            return file.read()

    def status(self):
        """The status document, or None while nobody answers. Raises if the job is over, for no figure waits for that."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the job ended with status {self.process.returncode}:\n{self.said()[-2000:]}")
        return self.ask("status")

    def ask(self, question):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            control.settimeout(5)
            try:
                control.connect(os.path.join(self.run_dir, "control.sock"))
                control.send(json.dumps({"op": question}).encode())
                answer, files, _, _ = socket.recv_fds(control, 1 << 20, 1)
                if files:  # a large one
                    answer = os.pread(files[0], os.fstat(files[0]).st_size, 0)
                    os.close(files[0])
                return json.loads(answer)
            except OSError:
                return None

    def running(self, epoch=1, steps=1):
        """Waits until all ranks of `epoch` or a later one run and have finished `steps` steps; returns the status."""
        first = {}

        def ready():
            status = self.status()
            if not status or status["epoch"] < epoch or len(status["ranks"]) < self.ranks:
                return None
            if any(rank["state"] != "running" for rank in status["ranks"]):
                return None
            begun = [rank["step"] - first.setdefault((rank["rank"], rank["pid"]), rank["step"]) for rank in status["ranks"]]
            return status if min(begun) >= steps else None

        return wait_for(ready, f"step {steps} in epoch {epoch}")

    def query(self, sql, *values):
        with contextlib.closing(sqlite3.connect(f"file:{self.run_dir}/journal.sqlite?mode=ro", uri=True)) as journal:
            return journal.execute(sql, values).fetchall()

    def events(self, after=0):
        rows = self.query("SELECT sequence, at_ns, type, payload FROM event WHERE sequence > ? ORDER BY sequence", after)
        return [Event(sequence, at, name, json.loads(payload)) for sequence, at, name, payload in rows]

    def last_sequence(self):
        return self.query("SELECT max(sequence) FROM event")[0][0]

    def wait_event(self, name, after=0, accept=lambda payload: True, patience_s=PATIENCE_S):
        def find():
            return next((event for event in self.events(after) if event.type == name and accept(event.payload)), None)

        return wait_for(find, f"event {name}", patience_s)

    def starter_pid(self):
        """`lockstep starter RUNDIR`, in a session of its own: found by its command line."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if len(words) > 2 and words[1] == b"starter" and words[2].decode() == self.run_dir:
                return int(name)
        raise RuntimeError(f"no starter for {self.run_dir}")


def strike(pid, number):
    """Sends the signal and returns the moment just before."""
    at = boottime_ns()
    os.kill(pid, number)
    return at


def kill(pid):
    return strike(pid, signal.SIGKILL)
