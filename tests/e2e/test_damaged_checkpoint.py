"""A bit flips in a checkpoint: it is noticed, said, and not restored; the result is that of an undisturbed run."""
import os
import signal
import unittest

from board import Board
from harness import Run, RunTest, ddp, state_of


class DamagedCheckpoint(RunTest):
    def damage(self, steps_to_damage):
        """Stops all ranks, flips a bit in rank 1's checkpoints of steps_to_damage(committed steps), kills rank 2."""
        run = Run(self, "ddp.py", *ddp())
        run.wait_for_step(8)
        workers = run.pids()
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        run.wait("all ranks stop", lambda: all(state_of(pid) == "T" for pid in workers))
        board = Board(run.starter(), run.ranks)
        committed = board.committed()
        self.assertTrue(committed, run)
        damaged = steps_to_damage(committed)
        for step in damaged:
            board.flip_bit(1, workers[1], step)
        os.kill(workers[2], signal.SIGKILL)
        run.finish()
        self.assertEqual([["2"]], run.suspects(), run)
        self.assertEqual(2, run.epoch(), run)
        run.assert_undisturbed_result()
        return run, committed, damaged

    def assert_said(self, run, damaged):
        joined = " ".join(run.faults()[0]["joined"])
        self.assertIn("corrupt", joined, run)
        self.assertIn(f"rank 1: checkpoint of step {damaged[-1]}: CRC", joined, run)

    def test_newest_damaged(self):
        """The other buffer may be complete too, or about to be written anew: then the job begins at the beginning."""
        run, committed, damaged = self.damage(lambda committed: committed[-1:])
        self.assert_said(run, damaged)
        went_on = min(line["step"] for line in run.steps() if line["epoch"] == 2)
        self.assertEqual(committed[-2] + 1 if len(committed) == 2 else 0, went_on, run)

    def test_all_damaged(self):
        run, _, damaged = self.damage(lambda committed: committed)
        self.assert_said(run, damaged)
        self.assertEqual(0, min(line["step"] for line in run.steps() if line["epoch"] == 2), run)
        restarts = [action["text"] for action in run.faults()[0]["actions"] if action["kind"] == "restart"]
        self.assertIn("the beginning", restarts[0], run)


if __name__ == "__main__":
    unittest.main()
