"""A real job under torch.profiler: what its ranks wrote is explained, and the slow one named."""
import json
import pathlib
import subprocess
import tempfile
import unittest

from harness import BINARY, JOBS, PYTHON

RANKS = 2  # one for each core


class RealProfile(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-profile-", dir="/tmp")))

    def explain(self, *options):
        subprocess.run([BINARY, "run", "--run", str(self.folder / "run"), "--no-view", "--python", PYTHON, "--nproc-per-node", str(RANKS),
                        str(JOBS / "profiled.py"), str(self.folder), *options], check=True, capture_output=True, timeout=120)
        files = sorted(map(str, self.folder.glob("rank-*.json")))
        self.assertEqual(RANKS, len(files))
        answer = subprocess.run([BINARY, "explain", "--json", "--kineto", *files], capture_output=True, text=True, timeout=60, check=True)
        return json.loads(answer.stdout)

    def test_the_slow_rank_is_named(self):
        report = self.explain("--slow-rank", "1")
        self.assertEqual(("worker", 1), (report["causes"][0]["cause"], report["causes"][0]["suspects"][0]["rank"]), report)


if __name__ == "__main__":
    unittest.main()
