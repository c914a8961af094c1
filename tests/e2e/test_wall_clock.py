"""The wall clock of a node jumps by an hour, forth and back, as when somebody sets it by hand: nothing is decided or measured by it."""
import datetime
import pathlib
import struct
import time
import unittest

from harness import BINARY, Run, RunTest, ddp, free_port

WALL_CLOCK = str(pathlib.Path(BINARY).parent.parent / "lib/liblockstep-test-wall_clock.so")
STEPS = 60
# Step from which on the clock is off by so many seconds. Around a crash in step 30.
JUMPS = ((5, 3600), (25, -3600), (45, 0))


class WallClock(RunTest):
    def clock(self):
        """A file that sets the clock of whoever has the environment, and that environment."""
        file = self.folder() / "clock"
        self.set(file, 0)
        file.parent.chmod(0o755)
        return file, {"LD_PRELOAD": WALL_CLOCK, "LOCKSTEP_TEST_WALL_CLOCK": str(file)}

    def set(self, clock, offset_s):
        with open(clock, "r+b" if clock.exists() else "wb") as file:
            file.write(struct.pack("=q", offset_s))

    def jump(self, run, clock):
        for step, offset_s in JUMPS:
            run.wait_for_step(step)
            self.set(clock, offset_s)

    def assert_unmoved(self, run):
        self.assert_repaired(run, [1], {"crash"})
        incident, = run.faults()
        self.assertLess(sum(incident["phases"].values()), 30, run)
        ettr = run.status()["ettr"]
        self.assertLess(ettr["wall_s"], 300, run)
        self.assertAlmostEqual(ettr["wall_s"] * (1 - ettr["cumulative"]), sum(ettr["lost_s"].values()), delta=0.1, msg=run)
        run.assert_undisturbed_result(STEPS)

    def test_of_the_only_node(self):
        clock, environment = self.clock()
        run = Run(self, "ddp.py", *ddp(STEPS, ["kill:1:30"], step_time=0.1), env=environment)
        self.jump(run, clock)
        run.finish()
        self.assert_unmoved(run)
        opened = datetime.datetime.fromisoformat(run.faults()[0]["opened"]).timestamp()
        self.assertAlmostEqual(time.time() - 3600, opened, delta=60, msg=f"what people read is what the clock said\n{run}")

    def test_of_one_of_two_nodes(self):
        clock, environment = self.clock()
        port = free_port()
        nodes = [Run(self, "ddp.py", *ddp(STEPS, ["kill:1:30"], step_time=0.1), ranks=2, env=environment if index else None,
                     options=["--nnodes", "2", "--node-rank", str(index), "--node-name", "ab"[index], "--rdzv-endpoint", f"127.0.0.1:{port}"])
                 for index in range(2)]
        self.jump(nodes[0], clock)
        for node in reversed(nodes):
            node.finish()
        self.assert_unmoved(nodes[0])


if __name__ == "__main__":
    unittest.main()
