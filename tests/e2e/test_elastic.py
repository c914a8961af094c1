"""A job that may have two or three machines: it loses one, goes on with two, and has three again when another comes. Machines are folders of one machine here, as in test_standby.py."""
import signal
import subprocess
import unittest

from harness import BINARY, Run, ddp, free_port
from test_standby import StandbyTest

LONG, SHORT = 300, 120


class Elastic(StandbyTest):
    nnodes = "2:3"

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
        return Run(self, "ddp.py", *args, ranks=ranks, options=options, **where)

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


if __name__ == "__main__":
    unittest.main()
