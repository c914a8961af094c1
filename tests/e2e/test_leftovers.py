"""What a careless worker leaves behind goes with its epoch: children in sessions of their own, ports, shared memory."""
import json
import os
import socket
import unittest

import debugger
from harness import Run, RunTest, alive, ddp


def segments():
    """Ids of the System V shared memory of this machine."""
    with open("/proc/sysvipc/shm") as file:
        return [int(line.split()[1]) for line in file.readlines()[1:]]


class Leftovers(RunTest):
    def test_gone_after_the_restart(self):
        run = Run(self, "ddp.py", *ddp(60, ["grandchild:2:5"], step_time=0.1))
        run.wait_for_step(10, epoch=2)
        self.assert_gone(run)
        run.finish()
        self.assert_repaired(run, [2], {"crash"})
        run.assert_undisturbed_result(60)

    def test_rank_that_can_t_be_killed(self):
        """The end of the job waits for it a while, says so, and comes."""
        if reason := debugger.why_not():
            self.skipTest(reason)
        policy = self.folder() / "policy.toml"
        policy.write_text("[eviction]\nstuck_within_s = 2\n")
        run = Run(self, "ddp.py", *ddp(100_000), ranks=2, options=["--policy", str(policy)])
        run.wait_for_step(5)
        stuck = run.pids()[1]
        with debugger.Debugger(stuck) as held:
            run.ask("stop")
            run.ask("stop")
            run.finish(1)
            self.assertIn("have not ended 2 s after they were killed", run.stderr(), run)
            self.assertIn(f"killed, and not ended since: process {stuck};", run.stderr(), run)
            held.await_end()

    def assert_gone(self, run):
        left = json.loads(run.leftovers.read_text())
        self.assertEqual([], [pid for pid in left["pids"] if alive(pid)], run)
        self.assertFalse(os.path.exists(left["memory"]), run)
        self.assertGreaterEqual(left["segment"], 0)
        self.assertNotIn(left["segment"], segments(), run)
        with socket.create_server(("127.0.0.1", left["port"])):
            pass  # nobody listens there any more


if __name__ == "__main__":
    unittest.main()
