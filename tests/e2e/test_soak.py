"""Restart after restart: neither watcher nor starter grows. LOCKSTEP_SOAK=1000 says how many (60)."""
import os
import pathlib
import unittest

from harness import POLL_S, Run, RunTest

RESTARTS = int(os.environ.get("LOCKSTEP_SOAK") or 60)
SETTLED = 10  # by this restart every pool and cache has its size
STEP_S = 0.2  # long enough to be seen: restarts that bring no new step would end the job
JOB = f'''
import os, signal, sys, time
import lockstep

epoch = int(os.environ["LOCKSTEP_EPOCH"])
lockstep.step(epoch)
time.sleep({STEP_S})
while epoch in ({SETTLED + 1}, {RESTARTS + 1}) and not os.path.exists(f"{{sys.argv[1]}}/seen.{{epoch}}"):
    time.sleep({POLL_S})
if epoch <= {RESTARTS} and os.environ["RANK"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
'''
# An incident stays in memory for `lockstep incidents`: about 2 KB.
HISTORY_KB = 4 * (RESTARTS - SETTLED)
SLACK_KB = 2048


class Soak(RunTest):
    def test_nothing_grows(self):
        folder = self.folder()
        (folder / "job.py").write_text(JOB)
        options = ["--start-method", "exec", "--max-restarts", str(RESTARTS)]
        run = Run(self, str(folder / "job.py"), str(folder), ranks=2, options=options)
        settled, end = (self.measure(run, folder, restarts + 1) for restarts in (SETTLED, RESTARTS))
        run.finish(timeout=60)
        self.assertEqual([["0"]] * RESTARTS, run.suspects(), run)
        self.assertEqual(settled["processes"], end["processes"], run)
        for name in ("watcher", "starter"):
            self.assertEqual(settled[name]["descriptors"], end[name]["descriptors"], f"{name}\n{run}")
            self.assertEqual(settled[name]["threads"], end[name]["threads"], f"{name}\n{run}")
        self.assertLess(end["starter"]["rss_kb"] - settled["starter"]["rss_kb"], SLACK_KB, run)
        self.assertLess(end["watcher"]["rss_kb"] - settled["watcher"]["rss_kb"], SLACK_KB + HISTORY_KB, run)

    def measure(self, run, folder, epoch):
        """While this epoch waits for us."""
        def waits():
            status = run.status()
            return status.get("epoch") == epoch and status["state"] == "running"

        run.wait(f"epoch {epoch}", waits, timeout=60 + 2 * RESTARTS)
        seen = {"watcher": sizes(run.watcher.pid), "starter": sizes(run.starter()), "processes": len(run.processes())}
        (folder / f"seen.{epoch}").touch()
        return seen


def sizes(pid):
    proc = pathlib.Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    return {"descriptors": len(list((proc / "fd").iterdir())), "threads": int(status["Threads"]),
            "rss_kb": int(status["VmRSS"].split()[0])}


if __name__ == "__main__":
    unittest.main()
