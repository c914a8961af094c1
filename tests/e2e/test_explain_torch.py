"""A real job under torch.profiler: what its ranks wrote is explained, and the slow one named."""
import json
import pathlib
import subprocess
import tempfile
import unittest

from harness import BINARY, JOBS, PYTHON

RANKS = 2  # one for each core


class RealProfile(unittest.TestCase):
    python = PYTHON

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-profile-", dir="/tmp")))

    def explain(self, *options):
        subprocess.run([BINARY, "run", "--run", str(self.folder / "run"), "--no-view", "--python", self.python, "--nproc-per-node", str(RANKS),
                        str(JOBS / "profiled.py"), str(self.folder), *options], check=True, capture_output=True, timeout=120)
        files = sorted(map(str, self.folder.glob("rank-*.json")))
        self.assertEqual(RANKS, len(files))
        answer = subprocess.run([BINARY, "explain", "--json", "--kineto", *files], capture_output=True, text=True, timeout=60, check=True)
        return json.loads(answer.stdout)

    def test_the_slow_rank_is_named(self):
        report = self.explain("--slow-rank", "1")
        self.assertEqual(("worker", 1), (report["causes"][0]["cause"], report["causes"][0]["suspects"][0]["rank"]), report)
        self.assertGreater(report["causes"][0]["share"], 0.8, report)  # no wait of a rank was taken for its compute


class RealRun(unittest.TestCase):
    """Without a profiler: what the run itself noted is explained, while it runs and afterwards."""

    def explain(self, *words):
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-explain-", dir="/tmp"))
        run = f"{folder}/run"
        subprocess.run([BINARY, "run", "--run", run, "--no-view", "--python", PYTHON, "--nproc-per-node", str(RANKS), str(JOBS / "ddp.py"),
                        "--steps", "80", *words], check=True, capture_output=True, timeout=120)
        answer = subprocess.run([BINARY, "explain", "--json", run], capture_output=True, text=True, timeout=60, check=True)
        return json.loads(answer.stdout)

    def test_a_slow_forward(self):
        report = self.explain("--slow", "forward:1:0.02")
        self.assertEqual(("worker", 1), (report["causes"][0]["cause"], report["causes"][0]["suspects"][0]["rank"]), report)
        self.assertAlmostEqual(0.02, report["causes"][0]["gain_s"], delta=0.006)
        self.assertEqual("forward", next(iter(report["by_optype"])), report)
        self.assertEqual({"save", "data", "forward", "backward", "optimizer", "rest", "all_reduce", "broadcast"}, set(report["by_optype"]))
        self.assertGreater(report["steps"], 60)
        self.assertAlmostEqual(report["step_s"]["measured"], report["step_s"]["without_delays"], delta=0.1 * report["step_s"]["measured"])

    def test_slow_loading_of_data(self):
        report = self.explain("--slow", "data:1:0.02")
        self.assertEqual("data", next(iter(report["by_optype"])), report)
        self.assertEqual(1, report["causes"][0]["suspects"][0]["rank"], report)  # who costs most comes first


if __name__ == "__main__":
    unittest.main()
