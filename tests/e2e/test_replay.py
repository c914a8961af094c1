"""`lockstep replay` as a user runs it: machines that are processes of this one, and in simulation."""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

from harness import BINARY, JOBS, MARK, PYTHON, ROOT, inherited

JOB = str(JOBS / "replayed.py")
BURN_IN = str(JOBS / "burn_in.py")


class Replay(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-e2e-", dir="/tmp"))
        self.addCleanup(self.assert_nothing_left)

    def environment(self, faults=""):
        return {**inherited(), "LOCKSTEP_TEST_FAULTS": faults, "TMPDIR": self.folder, MARK: self.folder}

    def lockstep(self, *words, faults="", code=0):
        command = [BINARY, "replay", "--python", PYTHON, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=self.environment(faults))
        self.assertEqual(code, done.returncode, done.stderr + done.stdout)
        self.assertEqual([], os.listdir(self.folder))
        return done.stderr if code == 2 else json.loads(done.stdout)

    def find(self, machines, *words, faults, code=1):
        return self.lockstep("--machines", machines, "--steps", 1, "--layers", 2, *words, "--json", JOB, faults=faults, code=code)

    def assert_nothing_left(self):
        mark = f"{MARK}={self.folder}".encode()

        def left():
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    if mark in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                        yield pid
                except OSError:
                    continue  # gone, or not ours to look at

        deadline = time.monotonic() + 10
        while list(left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual([], list(left()))

    # ---- real processes ----

    def test_healthy_machines_and_our_own_model(self):
        report = self.lockstep("--machines", 4, "--steps", 2, "--json")
        self.assertTrue(report["healthy"])
        self.assertEqual([[], [], []], [report[key] for key in ("bad", "suspects", "evict")])
        self.assertEqual([2, 2], [len(report["rounds"]), report["grid"]["m"]])
        self.assertNotIn("note", report)

    def test_a_flipped_bit_in_two_rounds(self):
        report = self.find(4, faults="flip:2")
        self.assertEqual(([2], [2], True, 2), (report["bad"], report["evict"], report["certain"], len(report["rounds"])))
        evidence = report["rounds"][0]["failed"][0]["evidence"]
        self.assertIn("machine 2 (rank 0 of its group): local gradient 0 of step 0 differs from 3 of 4", evidence[0])

    def test_a_nan_and_a_killed_process_in_three_rounds(self):
        report = self.find(6, faults="nan:1,kill:5,child:0")
        self.assertEqual(([1, 5], [1, 5], True), (report["bad"], report["evict"], report["certain"]))
        self.assertLessEqual(len(report["rounds"]), 3)
        evidence = [line for found in report["rounds"][0]["failed"] for line in found["evidence"]]
        self.assertTrue(any("machine 1" in line and "NaN" in line for line in evidence), evidence)
        self.assertTrue(any("machine 5" in line and "signal 9" in line for line in evidence), evidence)

    def test_a_fault_that_shows_in_half_of_the_runs(self):
        report = self.find(4, "--reproduces", 0.5, "--error", 0.05, faults="flip:3:0.5")
        self.assertEqual(([3], True), (report["bad"], report["certain"]))
        self.assertEqual(7, report["rounds"][0]["runs_each"])  # 0.5^7 < 0.05 / 6

    def test_a_hang_is_a_failure_once_the_deadline_is_over(self):
        report = self.find(4, "--deadline-s", 15, faults="hang:1")
        self.assertEqual(([1], 2), (report["bad"], len(report["rounds"])))
        self.assertIn("not done after 15 s", report["rounds"][0]["failed"][0]["evidence"][0])

    def test_a_script_that_never_asks_is_judged_by_exits_and_the_verdict_says_so(self):
        note = "values were not compared, for the script never calls lockstep.replay(): only exits and deadlines were"
        report = self.lockstep("--machines", 4, "--json", BURN_IN)
        self.assertEqual((True, note), (report["healthy"], report.get("note")))
        report = self.lockstep("--machines", 4, "--json", BURN_IN, 2, code=1)
        self.assertEqual(([2], True, note), (report["bad"], report["certain"], report.get("note")))
        text = subprocess.run([BINARY, "replay", "--python", PYTHON, "--machines", "2", BURN_IN], capture_output=True, text=True, timeout=240,
                              check=True, env=self.environment()).stdout
        self.assertRegex(text, rf"(?m)^healthy +true\nnote +{re.escape(note)}$")

    def test_a_script_that_never_checks_is_told_apart_from_one_that_never_asks(self):
        report = self.lockstep("--machines", 4, "--json", BURN_IN, "ask")
        self.assertEqual((True, "values were not compared, for the script never calls check() of what lockstep.replay() gives: only exits and "
                                "deadlines were"), (report["healthy"], report.get("note")))

    def test_a_script_that_fails_everywhere_blames_no_machine(self):
        error = self.lockstep("--machines", 4, JOB, "--raise", code=2)
        self.assertIn("all 2 groups fail alike, so it is the script and no machine", error)
        self.assertIn("ValueError: planned, in every rank", error)

    def test_nothing_outlives_a_replay_that_is_killed(self):
        command = [BINARY, "replay", "--python", PYTHON, "--machines", "4", "--logs", self.folder, JOB]
        process = subprocess.Popen(command, env=self.environment("hang:0"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 60
        while not list(pathlib.Path(self.folder).glob("*.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def test_without_a_replay_a_script_is_told_nothing(self):
        environment = {**inherited(), "PYTHONPATH": str(ROOT / "python")}
        done = subprocess.run([PYTHON, JOB], capture_output=True, text=True, timeout=60, check=True, env=environment)
        self.assertEqual("an ordinary run\n", done.stdout)

    # ---- simulation and bad input ----

    def test_ten_thousand_machines_in_simulation(self):
        job = ("--machines", 10000, "--ranks-per-machine", 8, "--layout", "tp8,pp4,dp2500")
        report = self.lockstep(*job, "--simulate", "4711,17", "--json", code=1)
        self.assertEqual(([17, 4711], True), (report["bad"], report["certain"]))
        self.assertLessEqual(len(report["rounds"]), 3)
        self.assertEqual(4, report["grid"]["pipeline"])
        link = self.lockstep(*job, "--simulate", "0-1", "--json", code=1)
        self.assertEqual(([], False, 1), (link["bad"], link["certain"], len(link["links"])))
        self.assertTrue(self.lockstep(*job, "--simulate", "none", "--json")["healthy"])

    def test_refused(self):
        for text, words in {
            "has 8 ranks, but 10 machines of 1 have 10": ["--machines", 10, "--layout", "pp4,dp2", "--simulate", "none"],
            "form one group": ["--machines", 4, "--layout", "pp4", "--simulate", "none"],
            "with m > n two machines share both groups": ["--machines", 24, "--pipelines", 6, "--simulate", "none"],
            "fills no whole machines of 2": ["--machines", 3, "--ranks-per-machine", 2, "--layout", "pp3,dp2"],
            "the chance to reproduce must be above 0": ["--machines", 4, "--reproduces", 0],
            "more than 1000 runs": ["--machines", 4, "--reproduces", 0.001],
            "confidence must be above 0.5": ["--machines", 4, "--confidence", 2],
            "at least 2 rounds": ["--machines", 4, "--rounds", 1],
            "a fault is a machine from 0 to 3": ["--machines", 4, "--simulate", "4"],
            "there is no such script": ["--machines", 4, "nowhere.py"],
            "--simulate runs nothing": ["--machines", 4, "--simulate", "1", JOB],
        }.items():
            with self.subTest(text):
                error = self.lockstep(*words, code=2)
                self.assertIn(text, error)
                self.assertEqual(1, error.count("\n"), error)


if __name__ == "__main__":
    unittest.main()
