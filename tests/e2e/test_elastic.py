"""A job that may have two or three machines: it loses one, goes on with two, and has three again when another comes. Machines are folders of one machine here, as in test_standby.py."""
import signal
import subprocess
import unittest

from harness import BINARY, Run, ddp, free_port
from test_standby import StandbyTest

LONG, SHORT = 300, 120


class ElasticTest(StandbyTest):
    nnodes, script = "2:3", "ddp.py"

    def setUp(self):
        self.lead_dir, self.port = self.folder() / "lead", free_port()
        policy = self.folder() / "policy.toml"
        policy.write_text("[nodes]\ngrow_after_s = 1\n")
        self.lead_by("--listen", f"127.0.0.1:{self.port}", "--run", str(self.lead_dir), "--nnodes", self.nnodes, "--policy", str(policy))

    def lead_by(self, *words):
        self.coordinator = subprocess.Popen([BINARY, "coordinator", "--no-view", *words], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.coordinator.wait)
        self.addCleanup(self.coordinator.kill)

    def node(self, name, *args, options=(), ranks=1, **where):
        options = ["--coordinator", f"127.0.0.1:{self.port}", "--node-name", name, *options]
        return Run(self, self.script, *args, ranks=ranks, options=options, **where)

    def start(self, *args):
        self.a, self.b, self.c = (self.node(name, *args, options=["--node-rank", str(rank)]) for rank, name in enumerate("abc"))
        self.a.wait("copies at the keepers", lambda: (self.lead("status")["checkpoint"]["peers"]["step"] or -1) > 5 if self.begun() else False)

    def begun(self):
        return any(line["step"] > 5 for line in self.a.steps())

    def world(self):
        return [node["name"] for node in self.lead("status")["nodes"]]

    def of_epoch(self, run, epoch):
        return [line for line in run.steps() if line["epoch"] == epoch]

    def ranks(self, run):
        return [rank["rank"] for rank in run.status()["ranks"]]


class Elastic(ElasticTest):
    def test_a_machine_is_lost_and_another_comes(self):
        words = [*ddp(LONG, step_time=0.05), "--replicas"]
        self.start(*words)
        kept = self.lead("status")["checkpoint"]["peers"]["step"]
        self.power_off(self.b)  # the one in the middle: c's rank is another one from now on
        self.a.wait_for_step(kept + 5, epoch=2)
        self.assertEqual(["a", "c"], self.world())
        self.assertEqual([1], self.ranks(self.c), self.c)
        self.assertIn("node 1 of 2 in the coming epoch, with ranks 1 to 1 of 2", self.c.stderr(), self.c)
        before, after = self.of_epoch(self.a, 1), self.of_epoch(self.a, 2)
        self.assertGreaterEqual(after[0]["step"], kept, "out of memory")
        self.assertLess(abs(after[0]["loss"] - before[-1]["loss"]), 0.5 * before[0]["loss"], (before[-1], after[0]))
        actions = [action["text"] for one in self.lead("incidents") for action in one["actions"]]
        self.assertIn("the world has 2 nodes with 2 ranks from now on, and had 3 with 3", actions)

        d = self.node("d", *words)
        self.a.wait("the world to grow", lambda: self.world() == ["a", "c", "d"])
        self.a.wait_for_step(after[-1]["step"], epoch=3)
        self.assertEqual([2], self.ranks(d), d)
        self.assertIn("going on from the copy of step", d.stderr(), d)
        for run in (self.a, self.c, d):
            run.finish()
        self.assertEqual(0, self.coordinator.wait(20))
        steps = [line["step"] for line in self.a.steps()]
        unseen = {self.of_epoch(self.a, epoch)[0]["step"] - 1 for epoch in (2, 3)}  # saved, and its line not written when the epoch ended
        self.assertLessEqual(set(range(LONG)) - set(steps), unseen, "no step is left out")
        self.assertEqual([1, 2, 3], sorted({line["epoch"] for line in self.a.steps()}))
        self.assertEqual([("b", "")], [(one["name"], one["standby"]) for one in self.lead("status")["evicted"]])

    def test_the_machine_of_rank_0_is_lost(self):
        """With it goes the store of the epoch: the next of the nodes is the first one, and hosts it."""
        self.start(*ddp(SHORT, step_time=0.05), "--replicas")
        kept = self.lead("status")["checkpoint"]["peers"]["step"]
        self.power_off(self.a)
        self.b.wait_for_step(kept + 5, epoch=2)
        self.assertEqual((["b", "c"], [0], [1]), (self.world(), self.ranks(self.b), self.ranks(self.c)), self.b)
        self.assertGreaterEqual(self.of_epoch(self.b, 2)[0]["step"], kept, "out of memory")
        for run in (self.b, self.c):
            run.finish()
        self.assertEqual(0, self.coordinator.wait(20))

    def test_a_coordinator_is_lost_before_the_smaller_world_begins(self):
        """Node c does not say that its ranks have ended until another coordinator has taken over: that one goes by the journal alone."""
        self.start(*ddp(SHORT, step_time=0.05), "--replicas")
        kept = self.lead("status")["checkpoint"]["peers"]["step"]
        self.c.watcher.send_signal(signal.SIGSTOP)
        self.power_off(self.b)
        self.a.wait("b to be out", lambda: [one["name"] for one in self.lead("status")["evicted"]] == ["b"])
        self.assertEqual(["a", "b", "c"], self.world(), "the epoch that is being stopped has its world")
        self.coordinator.kill()
        self.coordinator.wait()
        self.lead_by("--resume", str(self.lead_dir))
        self.c.watcher.send_signal(signal.SIGCONT)
        self.a.wait_for_step(kept + 5, epoch=2)
        self.assertEqual(["a", "c"], self.world())
        for run in (self.a, self.c):
            run.finish()
        self.assertEqual(0, self.coordinator.wait(20))
        self.assertEqual([("b", "")], [(one["name"], one["standby"]) for one in self.lead("status")["evicted"]])

    def test_ranks_that_differ_are_not_taken_for_each_other(self):
        """BatchNorm has statistics of its own on each rank, and nobody said that this is right: the job ends rather than going on wrong."""
        self.start(*ddp(LONG, step_time=0.05))
        self.power_off(self.b)
        for run in (self.a, self.c):
            run.finish(3, timeout=60)
            self.assertIn("its ranks differ", run.stderr(), run)


class CutAnew(ElasticTest):
    """State that ranks share, which no rank has for another: a world of another size goes on from disk, and the script cuts it anew."""
    script = "zero.py"

    def setUp(self):
        super().setUp()
        self.checkpoints = self.folder() / "checkpoints"

    def node(self, name, *args, options=(), interval="0.5", **where):
        disk = ["--checkpoint-dir", str(self.checkpoints), "--checkpoint-interval-s", interval]
        return super().node(name, *args, options=[*disk, *options], **where)

    def flushed(self):
        """The newest step on disk; -1: none."""
        return max((int(path.name[5:17]) for path in self.checkpoints.glob("step_*")), default=-1)

    def checksums(self, steps):
        """By step, of a run of one rank without Lockstep's hand in it."""
        run = Run(self, self.script, "--steps", str(steps), ranks=1)
        run.finish()
        return {line["step"]: line["loss"] for line in run.steps()}

    def assert_same_numbers(self, runs, steps):
        expected = self.checksums(steps)
        lines = [line for run in runs for line in run.steps()]
        self.assertEqual([], [line for line in lines if line["loss"] != expected[line["step"]]])
        self.assertIn(steps - 1, {line["step"] for line in lines})

    def test_a_machine_is_lost_and_another_comes(self):
        words = ["--steps", str(LONG), "--step-time", "0.05"]
        self.start(*words)
        self.a.wait("a checkpoint on disk", lambda: self.flushed() > 5)
        self.power_off(self.b)
        self.a.wait("the world of two", lambda: self.of_epoch(self.a, 2))
        first = self.of_epoch(self.a, 2)[0]
        self.assertEqual(2, first["world"])
        self.assertGreater(first["step"], 5, "it does not begin at the beginning")
        self.assertIn("of 3 ranks, which the script cuts anew", self.a.stderr(), self.a)
        d = self.node("d", *words)
        self.a.wait("the world of three", lambda: self.of_epoch(self.a, 3))
        self.assertEqual(3, self.of_epoch(self.a, 3)[0]["world"])
        for run in (self.a, self.c, d):
            run.finish()
        self.assertEqual(0, self.coordinator.wait(20))
        self.assert_same_numbers([self.a], LONG)

    def test_the_machine_of_rank_0_is_lost(self):
        """With it goes whoever sealed checkpoints on disk."""
        self.start("--steps", str(SHORT), "--step-time", "0.05")
        self.b.wait("a checkpoint on disk", lambda: self.flushed() > 5)
        self.power_off(self.a)
        for run in (self.b, self.c):
            run.finish()
        first = self.of_epoch(self.b, 2)[0]
        self.assertEqual(2, first["world"])
        self.assertGreater(first["step"], 5, "it does not begin at the beginning")
        self.assert_same_numbers([self.b], SHORT)
        self.assertGreater(self.flushed(), first["step"], "the new node 0 seals")

    def test_without_a_checkpoint_on_disk_the_job_ends(self):
        """Rather than beginning anew."""
        words = ["--steps", str(LONG), "--step-time", "0.05"]
        self.a, self.b, self.c = (self.node(name, *words, options=["--node-rank", str(rank)], interval="3600") for rank, name in enumerate("abc"))
        self.a.wait_for_step(10)
        self.power_off(self.b)
        for run in (self.a, self.c):
            run.finish(3, timeout=60)
            self.assertIn("begins from a checkpoint on disk, which the script cuts anew, and there is none", run.stderr(), run)

    def test_another_run_with_another_number_of_ranks(self):
        folder = ["--checkpoint-dir", str(self.checkpoints), "--checkpoint-interval-s", "0.5"]
        Run(self, self.script, "--steps", "20", "--step-time", "0.03", ranks=3, options=folder).finish()
        newest = self.flushed()
        self.assertGreater(newest, 5)
        wider = Run(self, self.script, "--steps", "30", ranks=4, options=folder)
        wider.finish()
        self.assertEqual(newest + 1, wider.steps()[0]["step"])
        self.assert_same_numbers([wider], 30)
        uncut = Run(self, self.script, "--steps", "40", "--uncut", ranks=2, options=[*folder, "--max-restarts", "0"])
        uncut.finish(1)
        self.assertIn("give restore(reshape=...) here too", uncut.stderr(), uncut)


if __name__ == "__main__":
    unittest.main()
