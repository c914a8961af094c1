"""As in a pod: process 1 of its own pid namespace, nobody's uid, no capability, a root that can't be written to, 64 MB of /dev/shm."""
import os
import pathlib
import shutil
import signal
import subprocess
import unittest

from harness import BINARY, NOBODY, Run, RunTest, children, ddp

ENTER = """#!/bin/sh
chown {uid}:{uid} "$(dirname "$3")"
exec unshare --pid --fork --mount --kill-child=SIGTERM sh -c '
  mount --make-rprivate / && mount -t proc proc /proc && mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm &&
  mount --bind /tmp /tmp && mount -o remount,ro,bind / &&
  exec setpriv --reuid {uid} --regid {uid} --clear-groups --bounding-set=-all --no-new-privs {binary} "$@"' pod "$@"
"""


def number_inside(pid):
    """The pid that a process has in its own namespace."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1])


def name(pid):
    return pathlib.Path(f"/proc/{pid}/comm").read_text()


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv") and shutil.which("unshare"), "needs root, unshare and setpriv")
class Pod(RunTest):
    def start(self, *args, options=()):
        enter = self.folder() / "enter"
        enter.write_text(ENTER.format(uid=NOBODY, binary=BINARY))
        enter.chmod(0o755)
        self.place = self.folder()
        os.chown(self.place, NOBODY, NOBODY)
        self.out, self.log = self.place / "out.json", self.place / "steps.jsonl"
        run = Run(self, str(pathlib.Path(__file__).parent / "jobs/ddp.py"), "--out", str(self.out), "--log", str(self.log),
                  *args, options=options, binary=str(enter))
        return run

    def test_crash(self):
        run = self.start(*ddp(faults=["kill:1:10", "stop:2:20:forward:2"]))
        run.finish()
        said = run.stderr()
        self.assertIn("rank 1 was killed by a signal", said)
        self.assertIn("rank 2 was stopped", said)
        self.assertIn("completed", said)

    def train(self):
        """A job that trains, and the pid of its pod's first process."""
        run = self.start(*ddp(600, step_time=0.1), options=["--grace-s", "5"])
        run.wait("some steps", lambda: self.log.exists() and len(self.log.read_text().splitlines()) > 3)
        return run, next(pid for pid, command in run.processes().items() if command[:2] == [BINARY, "run"] and number_inside(pid) == 1)

    def test_what_others_leave_behind_is_reaped(self):
        """As after `kubectl exec`: what is started in the pod by somebody else, and loses its parent there, is the first process's to reap."""
        run, first = self.train()
        subprocess.run(["nsenter", "--target", str(first), "--pid", "--mount", "sh", "-c", "(sleep 0.3 &) ; sleep 0.1"], check=True)
        orphans = [pid for pid in children(first) if "sleep" in name(pid)]
        self.assertEqual(1, len(orphans), run)
        run.wait("the orphan to be gone", lambda: not os.path.exists(f"/proc/{orphans[0]}"))
        os.kill(first, signal.SIGTERM)
        run.finish(code=1)

    def test_sigterm_is_passed_on(self):
        run, first = self.train()
        os.kill(first, signal.SIGTERM)
        run.finish(code=1)
        self.assertIn("stopped by SIGTERM", run.stderr())


if __name__ == "__main__":
    unittest.main()
