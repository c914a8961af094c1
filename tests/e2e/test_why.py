"""The ladder of recovery, and the story that `lockstep why` tells of it."""
import json
import subprocess
import unittest

from harness import BINARY, Run, RunTest, ddp, undocumented


def lockstep(*words):
    return subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=30)


class Why(RunTest):
    def story(self, run, incident):
        answer = run.ask("why", str(incident), "--json")
        self.assertEqual(0, answer.returncode, f"{answer.stderr}\n{run}")
        return json.loads(answer.stdout)

    def test_a_second_crash_is_diagnosed(self):
        run = Run(self, "ddp.py", *ddp(faults=["kill:1:5:forward:1", "kill:1:12:forward:2"]), ranks=2)
        run.finish()
        self.assert_repaired(run, [1, 1], {"crash"})
        self.assertEqual(["reattempt"], [one["rung"] for one in self.story(run, 1)["decisions"]], run)
        second = self.story(run, 2)
        self.assertEqual(set(), undocumented(second, "incident.md"))
        self.assertEqual(["diagnose", "reattempt"], [one["rung"] for one in second["decisions"]], run)
        self.assertIn("another crash after", second["decisions"][0]["reason"])
        self.assertIn("replay: it compares nodes, and the job has one", second["decisions"][1]["refused"])
        done = "\n".join(second["done"])
        self.assertIn("stop-time diagnosis: nothing found", done)
        self.assertIn("restart of all 2 ranks in epoch 3", done)
        self.assertIn("the job was back where it had been", second["outcome"])
        text = run.ask("why", "2").stdout
        self.assertIn("is a machine behind it?", text)
        unknown = run.ask("why", "3")
        self.assertEqual(2, unknown.returncode)
        self.assertIn("there is no incident 3: this run has had 2", unknown.stderr)
        no_number = run.ask("why", "99999999999999999999")
        self.assertEqual(2, no_number.returncode)
        self.assertIn("INCIDENT: expected 1 to 1000000000, found 99999999999999999999", no_number.stderr)

    def test_a_policy_that_only_restarts(self):
        policy = self.folder() / "dry.toml"
        policy.write_text("dry_run = true\n")
        run = Run(self, "ddp.py", *ddp(faults=["kill:1:5:forward:1", "kill:1:12:forward:2"]), ranks=2,
                  options=["--policy", str(policy)])
        run.finish()
        second = self.story(run, 2)["decisions"]
        self.assertEqual(["reattempt"], [one["rung"] for one in second], run)
        self.assertIn("diagnose: dry run: it would be done", second[0]["refused"])


class Policy(RunTest):
    def test_prints_the_table_and_the_values(self):
        answer = lockstep("policy", "--json")
        self.assertEqual(0, answer.returncode, answer.stderr)
        report = json.loads(answer.stdout)
        self.assertEqual(2, report["policy"]["eviction.per_hour"])
        self.assertLessEqual({"crash", "machine", "network", "nan"}, {row["symptom"] for row in report["table"]})
        self.assertIn("the machine itself says that it is broken", lockstep("policy").stdout)

    def test_bad_files(self):
        bad = self.folder() / "bad.toml"
        bad.write_text('[eviction]\nper_huor = 3\n')
        for words in (["policy", "--policy", str(bad)], ["run", "--policy", str(bad), "train.py"],
                      ["coordinator", "--listen", "127.0.0.1:1", "--policy", str(bad)]):
            answer = lockstep(*words)
            self.assertEqual(2, answer.returncode, words)
            self.assertIn(f"{bad}:2:1: eviction.per_huor", answer.stderr, words)
            self.assertIn("per_hour", answer.stderr, words)
        self.assertEqual(2, lockstep("policy", "--policy", "nowhere.toml").returncode)


if __name__ == "__main__":
    unittest.main()
