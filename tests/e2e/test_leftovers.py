"""What a careless worker leaves behind goes with its epoch: children in sessions of their own, ports, shared memory."""
import json
import os
import socket
import unittest

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
