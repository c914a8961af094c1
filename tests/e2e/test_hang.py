"""A rank stands still without dying: it is named by evidence, its stack is kept, and the job goes on bit for bit."""
import concurrent.futures
import json
import subprocess
import unittest

import freezer
from harness import BINARY, QUICK_LIMITS, STEPS, Run, RunTest, ddp


class Hang(RunTest):
    def run_each_rank(self, kind, symptoms, frame):
        """The fault strikes rank 0 in epoch 1, rank 1 in epoch 2, and so on."""
        place = "loss" if kind == "skip" else "forward"
        faults = [f"{kind}:{rank}:{5 + 5 * rank}:{place}:{rank + 1}" for rank in range(4)]
        run = Run(self, "ddp.py", *ddp(faults=faults), options=QUICK_LIMITS)
        run.finish()
        self.assert_repaired(run, [0, 1, 2, 3], symptoms)
        run.assert_undisturbed_result()
        for rank, incident in enumerate(run.faults()):
            section = section_of(rank, run.stacks(incident["id"]))
            self.assertIn(frame, section, run)

    def test_each_rank(self):
        """Two jobs at a time: most of it is waiting for limits."""
        faults = {"stop": ({"stopped"}, "stopped"), "gil": ({"spinning"}, "in spin_in_python"), "native": ({"not_entered"}, "in block_in_c"),
                  "native-gil": ({"spinning"}, "in spin_with_gil"), "skip": ({"desynchronised", "not_entered"}, "in backward"),
                  "native-spin": ({"spinning"}, "in spin_in_c")}
        with concurrent.futures.ThreadPoolExecutor(2) as jobs:
            ended = {kind: jobs.submit(self.run_each_rank, kind, *told) for kind, told in faults.items()}
        for kind, job in ended.items():
            with self.subTest(kind):
                job.result()

    def test_nobody_is_to_blame(self):
        """All ranks wait in one collective, in epoch 1, and all sleep, in epoch 2: only the limit makes it certain."""
        kinds, limit_s = {"broadcast": "in broadcast", "sleep300": "in sleep"}, 6
        faults = [f"{kind}:{rank}:{8 * epoch}:forward:{epoch}" for epoch, kind in enumerate(kinds, 1) for rank in range(4)]
        run = Run(self, "ddp.py", *ddp(faults=faults), options=["--hang-limit-s", str(limit_s)])
        run.finish()
        self.assertEqual(3, run.epoch(), run)
        self.assertEqual([("stalled", [])] * 2, [(one["symptom"], one["suspects"]) for one in run.faults()], run)
        for incident, frame in zip(run.faults(), kinds.values()):
            self.assertGreaterEqual(incident["phases"]["detect_s"], limit_s, run)
            self.assertEqual("restart", incident["actions"][-1]["kind"], run)
            self.assert_well_formed(incident, run)
            for rank in range(4):
                self.assertIn(frame, section_of(rank, run.stacks(incident["id"])), run)
        run.assert_undisturbed_result()

    def test_stacks_of_all_processes(self):
        """What is kept of an incident has the data workers of each rank, and tells on its own who holds the job up."""
        run = Run(self, "ddp.py", *ddp(faults=["native:1:10:forward:1"]), "--data-workers", "2", options=QUICK_LIMITS)
        run.finish()
        incident = run.faults()[0]["id"]
        heads = [line for line in run.stacks(incident).splitlines() if line.startswith("rank ")]
        self.assertEqual([f"rank {rank}" for rank in range(4)], [head.split(" (")[0] for head in heads[:4]], run)
        self.assertEqual([f"rank {rank}, data_worker" for rank in (0, 0, 1, 1, 2, 2, 3, 3)], [head.split(" (")[0] for head in heads[4:]], run)
        words = [BINARY, "diagnose", str(run.dir / f"incident_{incident}"), "--layout", "dp4", "--json"]
        report = json.loads(subprocess.run(words, capture_output=True, check=True, timeout=60).stdout)
        self.assertEqual([{"rank": 1}], report["verdicts"][0]["suspects"], report)
        self.assertEqual(12, report["stacks"]["processes"], report)
        self.assertFalse(report["verdicts"][0]["certain"], report)

    def freeze_each_rank(self, version):
        reason = freezer.why_not(version)
        if reason:
            self.skipTest(reason)
        ranks, steps = range(4), 2 * STEPS
        run = Run(self, "ddp.py", *ddp(steps, step_time=0.1), options=QUICK_LIMITS)
        group = freezer.Freezer(self, version)
        for epoch, rank in enumerate(ranks, 1):
            run.wait_for_step(5 + 5 * epoch, epoch)
            group.freeze(run.pids()[rank])
            run.wait(f"epoch {epoch + 1}", lambda: run.epoch() > epoch)
            group.thaw()
        run.finish()
        self.assert_repaired(run, ranks, {"frozen"})
        run.assert_undisturbed_result(steps)
        for rank, incident in zip(ranks, run.faults()):
            self.assertIn("frozen", section_of(rank, run.stacks(incident["id"])), run)

    def test_frozen_v1(self):
        self.freeze_each_rank(1)

    def test_frozen_v2(self):
        self.freeze_each_rank(2)


def section_of(rank, stacks):
    """The part of stacks.txt that is about one rank."""
    sections = ("\n" + stacks).split("\nrank ")
    return next(section for section in sections if section.startswith(f"{rank} "))


if __name__ == "__main__":
    unittest.main()
