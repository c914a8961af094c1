"""As in a pod: process 1 of its own pid namespace, nobody's uid, no capability, a root that can't be written to, 64 MB of /dev/shm."""
import os
import pathlib
import shutil
import signal
import subprocess
import unittest

from harness import BINARY, NOBODY, Run, RunTest, ddp

ENTER = """#!/bin/sh
chown {uid}:{uid} "$(dirname "$3")"
exec unshare --pid --fork --mount --kill-child=SIGTERM sh -c '
  mount --make-rprivate / && mount -t proc proc /proc && mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm &&
  mount --bind /tmp /tmp && mount -o remount,ro,bind / &&
  exec setpriv --reuid {uid} --regid {uid} --clear-groups --bounding-set=-all --no-new-privs {binary} "$@"' pod "$@"
"""


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

    def test_sigterm_is_passed_on(self):
        run = self.start(*ddp(600, step_time=0.1), options=["--grace-s", "5"])
        run.wait("some steps", lambda: self.log.exists() and len(self.log.read_text().splitlines()) > 3)
        first = [pid for pid, command in run.processes().items() if command[:2] == [BINARY, "run"]]
        os.kill(first[0], signal.SIGTERM)
        run.finish(code=1)
        self.assertIn("stopped by SIGTERM", run.stderr())


if __name__ == "__main__":
    unittest.main()
