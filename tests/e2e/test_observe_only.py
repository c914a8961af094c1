"""--observe-only: says what it would have done, and touches nothing."""
import os
import signal
import unittest

from harness import Run, RunTest, ddp, state_of


class ObserveOnly(RunTest):
    def test_stopped_rank(self):
        run = Run(self, "ddp.py", *ddp(faults=["stop:1:10"]), options=["--observe-only"])
        incident = run.wait("a certain incident", lambda: [one for one in run.incidents() if one["certain"]])[0]
        self.assertEqual([["1"]], run.suspects(), run)
        would = [action for action in incident["actions"] if action["kind"] == "restart"]
        self.assertEqual([False], [action["done"] for action in would], run)
        workers = run.pids()
        self.assertEqual("T", state_of(workers[1]), run)
        os.kill(workers[1], signal.SIGCONT)
        run.finish()
        self.assertEqual(1, run.epoch(), run)
        self.assertIsNotNone(run.incidents()[0]["closed"], run)
        run.assert_undisturbed_result()


if __name__ == "__main__":
    unittest.main()
