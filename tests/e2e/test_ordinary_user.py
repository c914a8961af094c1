"""The same without root: as `nobody` where we are root, else as whoever we are."""
import os
import unittest

from harness import NOBODY, QUICK_LIMITS, Run, RunTest, ddp

UID = NOBODY if os.geteuid() == 0 else None


class OrdinaryUser(RunTest):
    def run_with(self, *faults):
        run = Run(self, "ddp.py", *ddp(faults=faults), uid=UID, options=QUICK_LIMITS)
        run.finish()
        run.assert_undisturbed_result()
        return run

    def test_crash(self):
        self.assert_repaired(self.run_with("kill:1:5:forward:1", "abort:0:10:forward:2"), [1, 0], {"crash"})

    def test_stop(self):
        self.assert_repaired(self.run_with("stop:2:5"), [2], {"stopped"})

    def test_hang(self):
        """Needs stacks, for which the own processes may be traced or not."""
        self.assert_repaired(self.run_with("native:3:5"), [3], {"not_entered"})


if __name__ == "__main__":
    unittest.main()
