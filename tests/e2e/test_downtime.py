"""`lockstep downtime` as a user runs it."""
import json
import pathlib
import subprocess
import tempfile
import unittest

from harness import BINARY


class Downtime(unittest.TestCase):
    def lockstep(self, *words, code=0):
        done = subprocess.run([BINARY, "downtime", *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(code, done.returncode, done.stderr + done.stdout)
        return done.stderr if code else done.stdout

    def test_published_jobs_and_what_flags_change(self):
        before, after = (json.loads(self.lockstep(f"c4-2023-{month}", "--json")) for month in ("06", "12"))
        self.assertAlmostEqual(0.3119, before["downtime"], 4)
        self.assertAlmostEqual(0.0116, after["downtime"], 4)
        better = json.loads(self.lockstep("c4-2023-06", "--detect-s", "60", "--json"))
        self.assertAlmostEqual(before["shares"]["detect"] / 30, better["shares"]["detect"], 6)
        self.assertEqual(before["shares"]["diagnose"], better["shares"]["diagnose"])
        spares = json.loads(self.lockstep("c4-2023-12", "--node-repair-h", "24", "--spares", "0", "--json"))["spares"]
        self.assertEqual((0, 5), (spares["given"], spares["enough"]))
        self.assertIn("enough", self.lockstep("c4-2023-12", "--node-repair-h", "24"))

    def test_a_file_of_ones_own(self):
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "job.toml"
        path.write_text("between_failures_h = 10\ndiagnose_s = 600\ncheckpoint_interval_s = 900\ncheckpoint_cost_s = 20\n")
        report = json.loads(self.lockstep(path, "--json"))
        self.assertAlmostEqual(1200, report["checkpoint"]["best_interval_s"], delta=60)
        path.write_text("failures = -1\n")
        self.assertIn("job.toml:1:12: failures must not be negative", self.lockstep(path, code=2))

    def test_no_number_of_spares_is_enough(self):
        spares = json.loads(self.lockstep("c4-2023-12", "--node-repair-h", "1e9", "--json"))["spares"]
        self.assertIsNone(spares["enough"])
        self.assertEqual(100_000, spares["waiting"][-1]["spares"])
        self.assertGreater(spares["waiting"][-1]["share"], 0.5)

    def test_refused(self):
        for text, words in {"found neither": [], "counted over a period": ["--failures", 3], "nope": ["nope"],
                            "no time to train": ["--failures", "500", "--days", "1", "--diagnose-s", "3600"],
                            "detect must be at least 0": ["c4-2023-06", "--detect-s", "-1"],
                            "failures of at least 0 in a period above 0, found nan": ["--failures", "nan", "--days", "1"],
                            "detect must be at least 0 s, found inf": ["--failures", "0", "--days", "1", "--detect-s", "inf"]}.items():
            with self.subTest(text):
                error = self.lockstep(*words, code=2)
                self.assertIn(text, error)
                self.assertEqual(1, error.count("\n"), error)


if __name__ == "__main__":
    unittest.main()
