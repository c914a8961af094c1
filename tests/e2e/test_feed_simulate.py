"""`lockstep feed simulate` and `feed plan` as their users call them."""
import json
import pathlib
import random
import subprocess
import tempfile
import unittest

from harness import BINARY

POLICIES = ["auto", "dsa", "common", "packed", "paced", "aligned", "independent"]


def feed(*words):
    return subprocess.run([BINARY, "feed", *map(str, words)], capture_output=True, text=True, timeout=60, check=False)


class Simulate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "sets.txt"

    def sets(self, sets):
        self.file.write_text("".join(",".join(map(str, one)) + "\n" for one in sets))

    def document(self, *words):
        answer = feed("simulate", "--sets", self.file, *words, "--json")
        self.assertEqual((0, ""), (answer.returncode, answer.stderr))
        return json.loads(answer.stdout)

    def refused(self, *words):
        answer = feed("simulate", *words)
        self.assertEqual((2, ""), (answer.returncode, answer.stdout))
        return answer.stderr

    def test_orders_are_exactly_once_and_cost_what_is_said(self):
        chance = random.Random(3)
        sets = [sorted(chance.sample(range(400), 300)) for _ in range(4)]
        self.sets(sets)
        for policy in POLICIES:
            found = self.document("--policy", policy, "--orders")
            self.assertEqual(sets, [sorted(order) for order in found["orders"]])
            self.assertEqual(sum(len(set(step)) for step in zip(*found["orders"])), found["loads"], policy)
            self.assertEqual(len(set().union(*sets)), found["union"])
            self.assertAlmostEqual(found["loads"] / found["union"], found["ratio"], 4)

    def test_ids_beyond_32_bits_and_many_jobs(self):
        self.sets([[f"{first}-{first + 60}", 2**40 + first] for first in range(2**33, 2**33 + 70)])
        for policy in POLICIES:
            found = self.document("--policy", policy, "--cache", 32, "--orders")
            self.assertEqual([62] * 70, [len(set(order)) for order in found["orders"]])
            self.assertEqual(130 + 70, found["union"])

    def test_starts_and_rates(self):
        self.sets([["0-99"]] * 3)
        found = self.document("--start", "0,0.25,2", "--rates", "1,2,0.5")
        self.assertEqual([(0, 99), (25, 74), (200, 399)], [(job["first_step"], job["last_step"]) for job in found["jobs"]])

    def test_bad_input(self):
        self.assertIn("No such file", self.refused("--sets", "/nonexistent/sets"))
        for text, message in [("", ":1:1: an empty file"), ("0-3\n\n1\n", ":2:1: an empty line"), ("9-7\n", ":1:1: range 9-7 is reversed"),
                              ("1,2,1\n", ":1:5: item 1 is already in this set"), ("0\n-4\n", ":2:1: a negative item id"),
                              ("1 2\n", ":1:3: expected a comma"), ("99999999999999999999\n", ":1:1: item id")]:
            self.file.write_text(text)
            self.assertIn(message, self.refused("--sets", self.file))
        self.sets([["0-9"]] * 2)
        self.assertIn("expected auto, dsa, common", self.refused("--sets", self.file, "--policy", "lru"))
        self.assertIn("one number for each of 2 jobs", self.refused("--sets", self.file, "--start", "0"))
        self.assertIn("--rates 0", self.refused("--sets", self.file, "--rates", "1,0"))
        self.assertIn("--cache", self.refused("--sets", self.file, "--cache", "-1"))

    def test_plan(self):
        words = ["--samples", 1e6, "--encoded-kb", 100, "--decode-ms", 1, "--augment-ms", 0.3, "--cores", 32]
        answer = feed("plan", "--cache-gb", 100, "--storage-gbs", 0.5, *words, "--json")
        self.assertEqual(0, answer.returncode, answer.stderr)
        found = json.loads(answer.stdout)
        rates = [row["samples_per_s"] for row in found["by_cache"]]
        self.assertEqual(sorted(rates), rates)
        self.assertAlmostEqual(5000, rates[0])  # storage alone: 0.5e9 / 100e3
        self.assertNotIn("-0.0", answer.stdout)
        in_step = feed("plan", "--cache-gb", 0, *words, "--jobs", 4, "--json")  # one read and decode, four cuts
        self.assertAlmostEqual(32 / (1e-3 / 4 + 0.3e-3), json.loads(in_step.stdout)["split"]["samples_per_s"])
        self.assertEqual(2, feed("plan", "--cache-gb", -1, *words).returncode)
        for form in ("--decoded-kb", "--augmented-kb"):
            self.assertEqual(2, feed("plan", "--cache-gb", 100, *words, form, -5).returncode)


if __name__ == "__main__":
    unittest.main()
