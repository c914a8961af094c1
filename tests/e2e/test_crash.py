"""A rank dies: it is named, all ranks go on from memory, and the result is that of an undisturbed run, bit for bit."""
import signal
import unittest

from harness import Run, RunTest, ddp, kill


class Crash(RunTest):
    def test_undisturbed(self):
        run = Run(self, "ddp.py", *ddp())
        run.finish()
        self.assertEqual([], run.incidents(), run)
        self.assertEqual(1, run.epoch(), run)
        run.assert_undisturbed_result()

    def test_each_rank_killed(self):
        run = Run(self, "ddp.py", *ddp(faults=[f"kill:{rank}:{5 + 5 * rank}:forward:{rank + 1}" for rank in range(4)]))
        run.finish()
        self.assert_repaired(run, [0, 1, 2, 3], {"crash"})
        self.assert_steps_lost(run, [5, 10, 15, 20])
        run.assert_undisturbed_result()

    def test_killed_at_each_place(self):
        places = ["update", "loss", "saved"]
        faults = [f"kill:{index}:{5 + 5 * index}:{place}:{index + 1}" for index, place in enumerate(places)]
        run = Run(self, "ddp.py", *ddp(faults=faults))
        run.finish()
        self.assert_repaired(run, [0, 1, 2], {"crash"})
        run.assert_undisturbed_result()

    def test_survivors_finish_their_copies(self):
        """Rank 2 dies right behind its copy of step 5, while rank 1 has yet to make its own: nothing is done again.

        Rank 0 makes step 5 long, since what it is worth to wait depends on what would be lost.
        """
        run = Run(self, "ddp.py", *ddp(faults=["sleep3:0:5:forward:1", "nap400:1:5:loss:1", "kill:2:5:saved:1"]))
        run.finish()
        self.assert_repaired(run, [2], {"crash"})
        self.assertEqual(6, min(line["step"] for line in run.steps() if line["epoch"] == 2), run)
        run.assert_undisturbed_result()

    def test_code_that_can_t_be_compiled(self):
        script = self.folder() / "broken.py"
        script.write_text("import os\n\ndef f(:\n")
        for how in ("zygote", "exec"):
            run = Run(self, str(script), ranks=1, options=["--start-method", how])
            run.finish(1)
            self.assertIn("SyntaxError at broken.py:3", run.stderr(), run)

    def test_other_ways_to_die(self):
        run = Run(self, "ddp.py", *ddp(faults=["abort:1:5:forward:1", "exit3:2:10:forward:2", "raise:3:15:update:3"]))
        run.finish()
        self.assert_repaired(run, [1, 2, 3], {"crash", "exit"})
        symptoms = [incident["symptom"] for incident in run.faults()]
        self.assertEqual(["crash", "exit", "exit"], symptoms, run)
        for text, incident in zip(["SIGABRT", "exit code 3", "ValueError"], run.faults()):
            self.assertIn(text, incident["headline"], run)
        run.assert_undisturbed_result()

    def test_a_script_that_tells_no_steps(self):
        """After a minute it counts as training, and its incident closes; one that has joined and loads for as long does not."""
        script = self.folder() / "loads.py"
        script.write_text("import time\nimport lockstep\nckpt = lockstep.Checkpoint({'at': {'step': 0}})\nprint('loads', flush=True)\ntime.sleep(600)\n")
        loads = Run(self, str(script), ranks=1)
        loads.wait("it loads", lambda: "loads" in loads.stdout())
        run = Run(self, "/bin/sleep", "600", ranks=2, options=["--no-python", "--allow-drill"])
        run.wait("its ranks run", lambda: len(run.pids()) == 2)
        kill(run.pids()[0], signal.SIGKILL)
        run.wait("its incident is closed", lambda: run.incidents() and run.incidents()[0]["closed"], timeout=90)
        status = run.status()
        self.assertEqual(("running", 2, -1), (status["state"], status["epoch"], status["step"]), run)
        self.assertEqual({("running", -1)}, {(rank["state"], rank["step"]) for rank in status["ranks"]}, run)
        self.assertEqual("starting", loads.status()["state"], loads)
        self.assertEqual(0, run.ask("drill", "kill", "--rank", "1").returncode, run)
        run.wait("it is restarted", lambda: run.epoch() == 3)
        self.assertTrue(run.incidents()[1]["headline"].endswith(" [drill]"), run)
        for each in (run, loads):
            self.assertEqual(0, each.ask("stop").returncode, each)
            each.finish(1)

    def assert_steps_lost(self, run, died_in):
        """A rank that dies in step s has finished s - 1, as have all others; where they went on, the job's log says."""
        for epoch, (step, incident) in enumerate(zip(died_in, run.faults()), 2):
            went_on = min(line["step"] for line in run.steps() if line["epoch"] == epoch)
            self.assertEqual(step - went_on, incident["steps_lost"], f"incident {incident['id']}\n{run}")


if __name__ == "__main__":
    unittest.main()
