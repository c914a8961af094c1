"""`lockstep plan` as its users call it."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from harness import BINARY

ROWS = """id,family,hardware,gpus,layers,hidden,ffn,gated,heads,seq,gbs,mbs,tp,pp,zero,recompute,attention,precision,step_time_s
a,f,H100-80GB-SXM,8,32,4096,16384,0,32,2048,64,4,1,1,1,none,flash,bf16,2.0
b,f,H100-80GB-SXM,8,32,4096,16384,0,32,2048,128,4,1,1,1,none,flash,bf16,3.9
c,f,H100-80GB-SXM,8,32,4096,16384,0,32,2048,64,4,3,1,1,none,flash,bf16,2.0
"""
LLAMA = ["--model", "llama3-8b", "--cluster", "dgx-h100:16", "--batch", "128"]


def plan(*words):
    return subprocess.run([BINARY, "plan", *map(str, words)], capture_output=True, text=True, timeout=60, check=False)


class Plan(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.table = self.folder / "runs.csv"
        self.table.write_text(ROWS)
        self.unmeasured = self.folder / "unmeasured.csv"
        self.unmeasured.write_text("".join(ROWS.splitlines(True)[i] for i in (0, 3)))

    def document(self, *words):
        answer = plan(*words, "--json")
        self.assertEqual((0, ""), (answer.returncode, answer.stderr))
        return json.loads(answer.stdout)

    def test_the_best_layouts(self):
        found = self.document(*LLAMA, "--top", 3)
        self.assertEqual(3, len(found["best"]))
        times = [one["step_time_s"] for one in found["best"]]
        self.assertEqual(sorted(times), times)
        first = found["best"][0]
        self.assertAlmostEqual(first["step_time_s"], sum(first["breakdown"].values()), 9)
        self.assertLessEqual(first["memory_gib"]["total"], first["memory_gib"]["capacity"])
        self.assertIn("step_time_s", plan(*LLAMA).stdout)

    def test_one_layout(self):
        one = self.document(*LLAMA, "--layout", "tp=2,pp=2,mbs=2")
        self.assertIn("tp 2, pp 2, dp 4", one["layout"])
        self.assertLess(one["lo80"], one["step_time_s"])
        self.assertLess(one["step_time_s"], one["hi80"])

    def test_what_fits_nowhere(self):
        answer = plan("--model", "llama3-70b", "--cluster", "a100-40gb:8", "--batch", 8)
        self.assertEqual(1, answer.returncode)
        self.assertIn("no layout fits the memory: the least is", answer.stderr)

    def test_calibrated_by_ones_own_runs(self):
        folder = self.folder / "mine"
        fitted = self.document("calibrate", self.table, "-o", folder)
        self.assertEqual((2, 1), (fitted["runs"], fitted["skipped"]))
        report = self.document("validate", self.table, "--calibration", folder, "--rows")
        self.assertEqual((3, 2, 2), (report["n"], report["predicted"], len(report["rows"])))
        self.assertEqual(4, report["skipped"][0]["row"])
        self.assertIn("tp 3", report["skipped"][0]["why"])
        self.assertLess(report["mape"], 0.05)
        self.assertIn("step_time_s", self.document(*LLAMA, "--calibration", folder)["best"][0])

    def test_published_runs(self):
        table = pathlib.Path(os.environ.get("LOCKSTEP_DATA", "")) / "perf/measured_train.csv"
        if not table.exists():
            self.skipTest(f"no {table}")
        report = self.document("validate", table)
        self.assertGreater(report["predicted"], 450)
        self.assertLess(report["median"], 0.04)
        self.assertLess(report["mape"], 0.08)
        self.assertLess(report["memory"]["mape"], 0.08)

    def test_bad_input(self):
        for words, text in [
            ([], "needs --model, --cluster and --batch"),
            (["--model", "llama3-8", "--cluster", "dgx-h100:8", "--batch", 8], "llama3-8b"),
            (["--model", "llama3-8b", "--cluster", "dgx-h100", "--batch", 8], "expected NAME:N"),
            (["--model", "llama3-8b", "--cluster", "h100:8", "--batch", 8], 'no machine "h100" is known'),
            (["--model", "llama3-8b", "--cluster", "dgx-a100:8", "--batch", 8, "--precision", "fp8"], "a100-80gb has none"),
            ([*LLAMA, "--layout", "tp=3"], "but there are 16"),
            (["validate", self.folder / "none.csv"], "none.csv"),
            ([*LLAMA, "--stack", "megatron"], "expected one of nemo,"),
            (["validate", self.table, "--calibration", self.folder / "none"], "expected a folder of"),
            (["calibrate", self.unmeasured, "-o", self.folder / "x"], "no run to calibrate with (1 rows were skipped"),
        ]:
            answer = plan(*words)
            self.assertEqual(2, answer.returncode, f"{words}: {answer}")
            self.assertIn(text, answer.stderr)
            self.assertEqual(1, len(answer.stderr.splitlines()), answer.stderr)


if __name__ == "__main__":
    unittest.main()
