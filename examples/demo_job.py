"""One `lockstep run` of the example, as the demo starts, asks, hurts and ends it."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_gpt.py")
MARK = "LOCKSTEP_DEMO"
POLL_S = 0.1


def say(text):
    print(f"demo: {text}", file=sys.stderr, flush=True)


class Job:
    """In a process group with us, so that Ctrl-C and Ctrl-Z reach it too. words: further options of `lockstep run`."""

    def __init__(self, flags, name, quiet, ranks=None, words=()):
        self.binary = flags.binary
        self.run_dir = os.path.join(flags.folder, name)
        self.result = os.path.join(flags.folder, name + ".json")
        command = [self.binary, "run", "--nproc-per-node", str(ranks or flags.ranks), "--python", flags.python, "--job", name,
                   "--run", self.run_dir, "--grace-s", "3", *words, SCRIPT, "--steps", str(flags.steps), "--out", self.result]
        with open(self.run_dir + ".txt", "w") if quiet else contextlib.nullcontext() as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, MARK: self.run_dir})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Whatever ended the demo ends the job: SIGTERM first, which Lockstep passes on to its workers."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def ask(self, question):
        """What `lockstep status` or `lockstep incidents` answers; None while there is nobody to answer."""
        command = [self.binary, question, "--run", self.run_dir, "--json"]
        answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        return json.loads(answer.stdout) if answer.returncode == 0 else None

    def wait_for(self, condition):
        """The first status that fulfils it; None if the job ended before."""
        while self.process.poll() is None:
            status = self.ask("status")
            if status and condition(status):
                return status
            time.sleep(POLL_S)
        return None

    def wait_for_step(self, step, epoch=1):
        """The ranks once all of them run and have finished `step`, in `epoch` or a later one; None if the job ended."""
        def there(status):
            return (status["epoch"] >= epoch and status["ranks"] and
                    all(rank["state"] == "running" and rank["step"] >= step for rank in status["ranks"]))

        status = self.wait_for(there)
        return status and status["ranks"]

    def say_above_view(self, text, ranks):
        """Prints a line as output of rank 0: what the job itself prints can't garble the live view, ours could."""
        try:
            with open(f"/proc/{ranks[0]['pid']}/fd/1", "w") as output:
                output.write(f"demo: {text}\n")
        except OSError:
            say(text)  # rank 0 is just going away

    def power_off(self):
        """All of its processes at once, as when their machine loses power."""
        mark = f"{MARK}={self.run_dir}".encode()
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                if mark in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def named_for_certain(self):
        """[(symptom, [names])] of all incidents, in order. Left aside are agents that were out of reach, for that says nothing of the job, slowness,
        and what was merely suspected: four ranks on few cores, or whatever else the machine does, make some ranks slow, and they are named."""
        aside = ("watcher_lost", "communication_slow", "non_communication_slow")
        return [(incident["symptom"], [suspect["name"] for suspect in incident["suspects"]]) for incident in self.ask("incidents")
                if incident["certain"] and incident["symptom"] not in aside]

    def end_well(self):
        status = self.process.wait()
        if status != 0:
            sys.exit(f"demo: the job ended with status {status}; what it said and did is in {self.run_dir}*")
