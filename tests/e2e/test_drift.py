"""`lockstep run --plan FILE`: a job beside its prediction. What drifts is told once, and nothing is done about it."""
import json
import re
import subprocess
import unittest
import urllib.request

from harness import BINARY, Run, RunTest, ddp

STEP_S = 0.05
RANKS = 2
PLAN = {"accelerators": RANKS, "layout": "dp 2", "step_time_s": STEP_S, "lo80": STEP_S / 100, "hi80": 100 * STEP_S,
        "exposed_communication_s": 0.001}
TOO_FAST = {**PLAN, "step_time_s": STEP_S / 10, "lo80": STEP_S / 11, "hi80": STEP_S / 9}
LONG = 100_000  # ended by `lockstep stop`


class Drift(RunTest):
    def run_beside(self, plan):
        path = self.folder() / "plan.json"
        path.write_text(plan if isinstance(plan, str) else json.dumps(plan))
        return Run(self, "ddp.py", *ddp(LONG, step_time=STEP_S), ranks=RANKS,
                   options=["--plan", str(path), "--metrics-port", "0"])

    def wait_for_verdict(self, run, verdict):
        run.wait(f"the verdict {verdict}", lambda: run.status().get("plan", {}).get("verdict") == verdict)
        return run.status()["plan"]

    def metrics(self, run):
        url = re.search(r"http://\S+/metrics", run.stderr()).group()
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()

    def drifts(self, run):
        return [one for one in run.incidents() if one["symptom"] == "plan_drift"]

    def stop(self, run):
        run.ask("stop")
        run.finish(code=1)

    def test_steps_that_take_longer_are_told_and_left_alone(self):
        run = self.run_beside(TOO_FAST)
        run.wait("word of it", lambda: self.drifts(run))
        plan = self.wait_for_verdict(run, "slower")
        self.assertGreater(plan["drift"], 1, run)
        self.assertGreater(plan["step_time_s"], TOO_FAST["hi80"], run)
        one = self.drifts(run)[0]
        self.assertRegex(one["headline"], r"the job does not keep to its plan: steps take .* s; the plan said 0.005 \(", run)
        self.assertTrue(one["certain"], run)
        self.assertEqual([], one["suspects"], run)
        self.assertRegex(" ".join(one["evidence"]), "in collectives", run)  # by the records of gloo's collectives
        self.assertEqual({"note"}, {action["kind"] for action in one["actions"]}, run)
        self.assertRegex(run.stderr(), rf"incident {one['id']}: .* does not keep to its plan", run)
        run.wait("its end", lambda: self.drifts(run)[0]["closed"])
        metrics = self.metrics(run)
        self.assertRegex(metrics, r'lockstep_plan_step_time_seconds\{figure="predicted"\} 0.005\n', run)
        self.assertRegex(metrics, r"lockstep_plan_drift_ratio [0-9]", run)
        step = run.step()
        run.wait("more steps", lambda: run.step() > step + 50)
        self.assertEqual(1, len(self.drifts(run)), run)
        self.assert_never_restarted(run)
        self.stop(run)

    def test_a_job_that_keeps_to_its_plan(self):
        run = self.run_beside(PLAN)
        plan = self.wait_for_verdict(run, "within")
        self.assertEqual(STEP_S, plan["predicted_s"], run)
        self.assertEqual([], self.drifts(run), run)
        self.stop(run)

    def test_what_the_planner_writes(self):
        answer = subprocess.run([BINARY, "plan", "--model", "llama3-8b", "--cluster", f"dgx-h100:{RANKS}", "--batch", "16",
                                 "--layout", "tp=2", "--json"], capture_output=True, text=True, timeout=60, check=True)
        run = self.run_beside(answer.stdout)
        plan = self.wait_for_verdict(run, "faster")
        self.assertLess(plan["drift"], -0.5, run)
        self.assertEqual([], self.drifts(run), run)
        self.stop(run)

    def test_a_plan_of_another_world_is_not_compared(self):
        run = self.run_beside({**TOO_FAST, "accelerators": 64})
        run.wait_for_step(40)
        self.assertEqual("of 64 accelerators; 2 ranks run", run.status()["plan"]["verdict"], run)
        self.assertEqual([], self.drifts(run), run)
        self.stop(run)

    def test_what_is_no_plan_is_refused(self):
        for text, why in (("{", "no JSON object"), ({"best": []}, "the best of many layouts"),
                          ({**PLAN, "hi80": None}, "hi80 is null, expected a number")):
            with self.subTest(why):
                run = self.run_beside(text)
                run.finish(2, timeout=20)
                self.assertIn(why, run.stderr(), run)
                self.assertIn("lockstep plan ... --layout ... --json", run.stderr(), run)
                self.assertEqual(1, len(run.stderr().splitlines()), run)


if __name__ == "__main__":
    unittest.main()
