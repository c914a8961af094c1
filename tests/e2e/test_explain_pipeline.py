"""A pipeline's profiler files, its sends and receives fused: what was planted is named, and gains what it cost."""
import json
import subprocess
import tempfile
import unittest

from fused_pipeline import Job
from harness import BINARY

SHAPE = {"dp": 2, "pp": 4, "microbatches": 8, "steps": 6}


class FusedPipeline(unittest.TestCase):
    def explain(self, job):
        with tempfile.TemporaryDirectory(prefix="lockstep-pipeline-", dir="/tmp") as folder:
            answer = subprocess.run([BINARY, "explain", "--json", "--kineto", *job.write(folder)], capture_output=True, text=True, check=True,
                                    timeout=60)
        report = json.loads(answer.stdout)
        self.assertEqual({}, report["counters"], report)
        self.assertAlmostEqual(1, report["step_s"]["measured"] / job.step_s, delta=0.01)
        return report

    def assert_only_cause(self, fault, cause, ranks=None, **shape):
        healthy, job = Job(**SHAPE), Job(**SHAPE, fault=fault, **shape)
        report = self.explain(job)
        self.assertEqual([cause], [one["cause"] for one in report["causes"]], report)
        if ranks is not None:
            self.assertEqual(ranks, [suspect["rank"] for suspect in report["causes"][0]["suspects"]], report)
        cost = job.step_s - healthy.step_s
        self.assertAlmostEqual(1, report["causes"][0]["gain_s"] / cost, delta=0.05, msg=report)

    def test_a_healthy_one(self):
        report = self.explain(Job(**SHAPE))
        self.assertEqual([], report["causes"])
        self.assertLess(report["slowdown"], 1.005)

    def test_a_slow_worker(self):
        self.assert_only_cause(lambda kind, dp, stage, seconds: seconds * (1.4 if kind in "FB" and (dp, stage) == (1, 2) else 1), "worker", [5])

    def test_a_heavy_stage(self):
        self.assert_only_cause(lambda kind, dp, stage, seconds: seconds * (1.3 if kind in "FB" and stage == 3 else 1), "stage")

    def test_a_slow_link(self):
        self.assert_only_cause(lambda kind, dp, stage, seconds: seconds + (0.01 if kind == "x" and (dp, stage) == (1, 1) else 0), "link", [3, 5])

    def test_uneven_lengths(self):
        report = self.explain(Job(**SHAPE, lengths=0.3))
        self.assertEqual(["sequence_length"], [one["cause"] for one in report["causes"]], report)


if __name__ == "__main__":
    unittest.main()
