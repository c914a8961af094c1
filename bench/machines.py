"""Machines that are folders of one, for figures of a job that loses some of them: all processes of one die at once."""
import contextlib
import os
import signal
import tempfile
import time

import session

RANKS = 2  # of each
AWAITED_STEPS = 12


class Machines:
    """with Machines(tools) as job: job.first (which has rank 0 and leads), job.second; job.spare stands by with a warm Python.

    The example trains without a disk: what a lost machine had comes from the memory of the other one."""

    def __init__(self, tools):
        self._tools, self._port, self._stack = tools, session.free_port(), contextlib.ExitStack()

    def __enter__(self):
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-bench-"))
        self.lines = session.Lines(os.path.join(folder, "log"))
        self._stack.callback(self.lines.close)
        meets = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{self._port}"]
        self.first = self._node("a", "--node-rank", "0", "--standbys", "1", *meets)
        self.second = self._node("b", "--node-rank", "1", *meets)
        session.wait_for(lambda: self.lines.first(lambda *_: True), "first step")
        self.spare = self._node("s", "--coordinator", f"127.0.0.1:{self._port}")
        session.wait_for(lambda: (self.first.status() or {}).get("standbys") or None, "standby")
        session.wait_for(lambda: self.lines.first(lambda _, line: line["step"] >= AWAITED_STEPS), "some steps")
        time.sleep(1)  # its Python is warm
        return self

    def __exit__(self, *problem):
        if problem[0] is None:
            for run in (self.first, self.spare):
                run.ask("stop")
            for run in (self.first, self.spare):
                run.process.wait(30)
        self._stack.__exit__(*problem)

    def _node(self, name, *words):
        command = [session.EXAMPLE, "--steps", "100000000", "--log", self.lines.path]
        return self._stack.enter_context(session.Session(self._tools, command, RANKS, ["--node-name", name, *words]))

    def stepped(self, since):
        """(when, line) of the first step that is logged after that moment."""
        return session.wait_for(lambda: self.lines.first(lambda when, _: when > since), "step after the restart")

    def done(self, before):
        """The furthest step that was logged until then."""
        return max(line["step"] for when, line in self.lines.all if when < before)


def power_off(node):
    """All of its processes at once; returns the moment just before."""
    pids = [node.process.pid, *family(node.starter_pid())]
    at = session.boottime_ns()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.process.wait(10)
    return at


def family(ancestor):
    """It and all its descendants."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
            children.setdefault(int(file.read().rsplit(")", 1)[1].split()[1]), []).append(int(name))
    found = [ancestor]
    for pid in found:
        found += children.get(pid, [])
    return found
