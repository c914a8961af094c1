"""Scripts that tell no steps: when they count as training."""
import re
import signal
import unittest

from harness import Run, RunTest, kill


class NoSteps(RunTest):
    def test_counts_as_training_after_a_minute(self):
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

    def test_a_rank_that_ends_early_is_named_and_ends_the_job_at_the_second_time(self):
        """Rank 1 has fewer data, and leaves with 0 while rank 0 waits for it in a collective, whose connection breaks first."""
        script = self.folder() / "uneven.py"
        script.write_text("import sys, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
                          "one = torch.ones(1)\nfor step in range(4):\n    dist.all_reduce(one)\n    if step == 2 and dist.get_rank() == 1:\n        sys.exit(0)\n")
        run = Run(self, str(script), ranks=2)
        run.finish(1)
        early = "rank 1 ended: exit code 0, while others still trained"
        self.assertEqual(2, len(run.incidents()), run)
        for incident in run.incidents():
            self.assertIn(early, incident["headline"], run)
        self.assertIn("uneven.py FAILED, first by rank 1", run.stderr(), run)
        self.assertIn("rank 1: exit code 0, while others still trained, struck twice in a row", run.stderr(), run)

    def test_a_stopped_rank_is_known_by_what_the_others_wait_in(self):
        """Long before a minute, by which one is known of which no collective tells."""
        script = self.folder() / "plain.py"
        script.write_text("import time, torch, torch.distributed as dist\ndist.init_process_group('gloo')\none = torch.ones(1)\n"
                          "for step in range(100000):\n    time.sleep(0.02)\n    dist.all_reduce(one)\n    if step == 300: print('it trains', flush=True)\n")
        run = Run(self, str(script), ranks=3)
        run.wait("it trains", lambda: run.stdout().count("it trains") == 3, timeout=120)
        kill(run.pids()[1], signal.SIGSTOP)
        incident, = run.wait("it is known", lambda: [one for one in run.incidents() if one["certain"]], timeout=100)
        self.assertEqual(("stopped", ["1"]), (incident["symptom"], [one["name"] for one in incident["suspects"]]), run)
        still_s = re.search(r"nothing has moved in its communication for (\d+) s", " ".join(incident["evidence"]))
        self.assertLess(int(still_s[1]), 30, run)
        run.wait("it is restarted", lambda: run.epoch() == 2, timeout=100)
        self.assertEqual(0, run.ask("stop").returncode, run)
        run.finish(1)

    def test_a_hang_is_named_by_its_collectives_and_ends_at_the_hang_limit(self):
        """Rank 1 sleeps instead of coming to a collective: no step tells that, but what the others wait in."""
        script, limit_s = self.folder() / "plain.py", 90
        script.write_text("import pathlib, time, torch, torch.distributed as dist\ndist.init_process_group('gloo')\none = torch.ones(1)\n"
                          "slept = pathlib.Path(__file__).with_suffix('.slept')\nfor step in range(20):\n"
                          "    if step == 10 and dist.get_rank() == 1 and not slept.exists():\n        slept.touch()\n        time.sleep(1000)\n"
                          "    dist.all_reduce(one)\n")
        run = Run(self, str(script), ranks=3, options=["--hang-limit-s", str(limit_s)])
        named, = run.wait("a name", run.incidents, timeout=100)
        self.assertEqual((["1"], False), ([one["name"] for one in named["suspects"]], named["certain"]), run)
        run.wait("it is restarted", lambda: run.epoch() == 2, timeout=100)
        run.finish()
        incident, = run.incidents()
        self.assertEqual((["1"], True), ([one["name"] for one in incident["suspects"]], incident["certain"]), run)
        still_s = re.search(r"nothing has moved in its communication for (\d+) s", " ".join(incident["evidence"]))
        self.assertGreaterEqual(int(still_s[1]), limit_s, run)


if __name__ == "__main__":
    unittest.main()
