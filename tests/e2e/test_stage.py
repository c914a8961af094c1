"""A real solver and a real trainer, coupled by lockstep.stage: what each of them sees, and what the other's death does to it."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BINARY") or ROOT / "build/release/bin/lockstep").resolve().parents[1]
SOLVER = BUILD / "bin/insitu_burgers"
PYTHON = "/usr/bin/python3"
STEPS = 600
LIMIT_S = 100


class Coupled(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-stage-")))
        self.room = self.folder / "room"
        self.env = {**os.environ, "LOCKSTEP_STAGE_DIR": str(self.room), "LOCKSTEP_STAGE_LIB": str(BUILD / "lib/liblockstep-stage.so"),
                    "PYTHONPATH": str(ROOT / "python")}

    def start(self, *words):
        child = subprocess.Popen([str(word) for word in words], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self._end, child)
        return child

    @staticmethod
    def _end(child):
        child.kill()
        child.communicate()

    def finish(self, child):
        out, err = child.communicate(timeout=LIMIT_S)
        self.assertEqual(0, child.returncode, err)
        return json.loads(out), err

    def solver(self, *words):
        return self.start(SOLVER, STEPS, *words)

    def trainer(self):
        return self.start(PYTHON, ROOT / "examples/insitu/autoencoder.py")

    def test_both_see_all_and_leave_nothing(self):
        alone, _ = self.finish(self.solver("alone"))
        solver, trainer = self.solver(), self.trainer()
        flow, log = self.finish(solver)
        learnt, _ = self.finish(trainer)
        self.assertEqual(alone["sum"], flow["sum"], "the coupling changes no bit of the flow")
        self.assertEqual(STEPS, learnt["steps"])
        self.assertEqual([0, 0, 0], [learnt[name] for name in ("unread", "skipped", "incomplete")])
        self.assertGreater(learnt["writer_waits"], 0, "a solver this fast has to wait for its trainer")
        self.assertGreater(flow["publications_asked"], 5, log)
        # On the same flow: the last publication against the first that it asked.
        self.assertLess(flow["error_last"], 0.5 * flow["error_first"], log)
        self.assertFalse(self.room.exists())

    def test_a_solver_that_is_killed(self):
        solver, trainer = self.solver(), self.trainer()
        for _ in range(3):  # it has asked its model: both are in the middle of it
            self.assertIn("publication", solver.stderr.readline())
        solver.kill()
        _, err = trainer.communicate(timeout=LIMIT_S)
        self.assertIn("WriterDied", err)
        self.assertIn(f"process {solver.pid}, is gone after step", err)
        self.assertFalse(self.room.exists(), "the trainer left last")

    def test_a_trainer_that_is_killed(self):
        solver, trainer = self.solver(), self.trainer()
        for _ in range(3):
            self.assertIn("publication", solver.stderr.readline())
        trainer.send_signal(signal.SIGKILL)
        trainer.wait(LIMIT_S)
        alone, _ = self.finish(self.solver("alone"))
        flow, _ = self.finish(solver)
        self.assertEqual(alone["sum"], flow["sum"], "the flow goes on, with the last weights that it had")
        self.assertFalse(self.room.exists())


if __name__ == "__main__":
    unittest.main()
