"""One per cent of the 24 healthy job-days that `./dev bench telemetry` looks at: 1,024 ranks, with all that makes healthy jobs look ill."""
import json
import pathlib
import subprocess
import unittest

from harness import BINARY

TELEMETRY = pathlib.Path(BINARY).parent / "telemetry"


class JobDays(unittest.TestCase):
    def test_nobody_is_named_in_a_healthy_job(self):
        answer = json.loads(subprocess.run([TELEMETRY, "days", "0.24", "1"], check=True, stdout=subprocess.PIPE, timeout=550).stdout)
        self.assertGreaterEqual(answer["windows"], 2073)
        self.assertGreater(answer["records"], 80_000_000)
        self.assertEqual((0, []), (answer["found"], answer["evidence"]))


if __name__ == "__main__":
    unittest.main()
