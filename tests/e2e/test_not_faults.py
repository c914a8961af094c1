"""What looks like a hang and is none: the job is left alone, and its result is that of an undisturbed run."""
import os
import signal
import unittest

import debugger
from harness import QUICK_LIMITS, Run, RunTest, ddp, state_of

AWAY_S = 8  # longer than the 2 s after which a rank is named, and than QUICK_LIMITS


class NotFaults(RunTest):
    def assert_left_alone(self, run):
        run.finish()
        self.assert_never_restarted(run)
        run.assert_undisturbed_result()

    def test_busy_ranks(self):
        """A sleep and a wait for a signal under limits that they outlast; an evaluation and a save of 36 s under the default ones. At once,
        since each job mostly waits."""
        sleeper = Run(self, "ddp.py", *ddp(faults=[f"sleep{AWAY_S + 4}:2:5", f"await-signal{AWAY_S}:3:15"]), options=QUICK_LIMITS)
        evaluator = Run(self, "ddp.py", *ddp(faults=["eval36:1:5"]))
        saver = Run(self, "ddp.py", *ddp(faults=["save36:0:5"]))
        for run in (sleeper, evaluator, saver):
            with self.subTest(run.command[-1]):
                self.assert_left_alone(run)

    def test_debugger(self):
        if reason := debugger.why_not():
            self.skipTest(reason)
        run = Run(self, "ddp.py", *ddp(), options=QUICK_LIMITS)
        run.wait_for_step(5)
        with debugger.Debugger(run.pids()[1]):
            run.hold("restarted under a debugger", AWAY_S, lambda: run.epoch() != 1)
        self.assert_left_alone(run)

    def test_ctrl_z(self):
        run = Run(self, "ddp.py", *ddp(), options=QUICK_LIMITS)
        run.wait_for_step(5)
        workers = run.pids()
        run.watcher.send_signal(signal.SIGTSTP)
        run.wait("the whole job stops", lambda: all(state_of(pid) == "T" for pid in [run.watcher.pid, *workers]))
        run.hold("a worker runs or is gone", AWAY_S, lambda: any(state_of(pid) != "T" for pid in workers))
        run.watcher.send_signal(signal.SIGCONT)
        self.assert_left_alone(run)
        self.assertEqual([], run.incidents(), run)
        self.assertGreater(run.status()["ettr"]["lost_s"]["paused"], AWAY_S - 1, run)

    def test_all_ranks_stopped_by_somebody(self):
        run = Run(self, "ddp.py", *ddp(), options=QUICK_LIMITS)
        run.wait_for_step(5)
        workers = run.pids()
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        run.wait("all stopped", lambda: all(state_of(pid) == "T" for pid in workers))
        run.hold("restarted", AWAY_S, lambda: any(state_of(pid) != "T" for pid in workers) or run.epoch() != 1)
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
        self.assert_left_alone(run)


if __name__ == "__main__":
    unittest.main()
