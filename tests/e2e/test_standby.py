"""Three machines for a job of two: the third stands by, and takes the place of one that is lost. Machines are folders of one machine here, as in test_nodes.py."""
import json
import os
import signal
import subprocess
import unittest

from harness import BINARY, STEPS, Run, RunTest, ddp, free_port, kill, of_the_job

LONG = 3 * STEPS


class StandbyTest(RunTest):
    interval = "0.3"

    def setUp(self):
        self.lead_dir, self.checkpoints, self.port = self.folder() / "lead", self.folder() / "checkpoints", free_port()
        words = ["--listen", f"127.0.0.1:{self.port}", "--run", str(self.lead_dir), "--nnodes", "2", "--standbys", "1"]
        self.coordinator = subprocess.Popen([BINARY, "coordinator", "--no-view", *words], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.coordinator.wait)
        self.addCleanup(self.coordinator.kill)

    def node(self, name, *args, options=(), ranks=2, **where):
        options = ["--coordinator", f"127.0.0.1:{self.port}", "--node-name", name, "--checkpoint-dir", str(self.checkpoints),
                   "--checkpoint-interval-s", self.interval, *options]
        return Run(self, "ddp.py", *args, ranks=ranks, options=options, **where)

    def start(self, *args, **of_b):
        """Nodes a and b, in the order of their ranks, and s, which stands by."""
        self.a = self.node("a", *args, options=["--node-rank", "0"])
        self.b = self.node("b", *args, options=["--node-rank", "1"], **of_b)
        self.a.wait_for_step(1)
        self.s = self.node("s", *args)
        self.a.wait("the standby", lambda: self.lead("status")["standbys"] == ["s"])

    def lead(self, subcommand):
        answer = subprocess.run([BINARY, subcommand, "--run", str(self.lead_dir), "--json"], capture_output=True, text=True, timeout=30)
        self.assertEqual(0, answer.returncode, answer.stderr)
        return json.loads(answer.stdout)

    def report(self):
        """What whoever led wrote down; also of a run that is over."""
        return {"incidents": self.lead("incidents"), "status": self.lead("status")}

    def evicted(self):
        return [one["name"] for one in self.lead("status")["evicted"]]

    def power_off(self, run):
        for pid in run.processes():
            kill(pid, signal.SIGKILL)
        run.watcher.wait(10)

    def assert_replaced(self, lost, by, at_least_step):
        """That node and no other, for certain; and what was computed since came from the disk they share."""
        report = self.report()
        self.assertEqual([(lost, by)], [(one["name"], one["standby"]) for one in report["status"]["evicted"]], report)
        found, = (one for one in report["incidents"] if one["symptom"] == "node_lost")
        self.assertEqual(([{"kind": "node", "name": lost}], True), (found["suspects"], found["certain"]), report)
        self.assertIsNotNone(found["closed"], report)
        self.assertIn(f"node {lost} is out of the job, standby {by} in its place", [one["text"] for one in found["actions"]], report)
        writer = self.a if self.a.out.exists() else self.s
        again = [line["step"] for line in writer.steps() if line["epoch"] > 1]
        self.assertGreaterEqual(min(again), at_least_step, report)
        writer.assert_undisturbed_result(LONG)

    def power_off_and_finish(self, run, name, kept, said):
        """The standby says so, and the job goes on from a step not below `kept`."""
        self.power_off(run)
        for other in (self.a, self.b, self.s):
            if other is not run:
                other.finish()
        self.assertEqual(0, self.coordinator.wait(20))
        self.assertIn(said, self.s.stderr(), self.s)
        self.assert_replaced(name, "s", kept)

    def on_disk(self):
        answer = subprocess.run([BINARY, "checkpoint", "list", str(self.checkpoints), "--json"], capture_output=True, text=True, timeout=60)
        return max((one["step"] for one in json.loads(answer.stdout)["checkpoints"]), default=-1) if answer.returncode == 0 else -1


class Standby(StandbyTest):
    def test_is_not_needed(self):
        self.start(*ddp(LONG))
        status = self.s.status()
        self.assertEqual(["standby", None, None, None], [status[key] for key in ("state", "epoch", "step", "furthest_step")], status)
        top = self.s.ask("top", "--once")
        self.assertEqual((0, ""), (top.returncode, top.stderr), self.s)
        lines = top.stdout.splitlines()
        self.assertRegex(lines[0], " standby  epoch -  step - ")
        self.assertEqual("no rank runs now", lines[1])
        self.assertIn(f"this node does not lead the job: ask where its coordinator runs (127.0.0.1:{self.port}"[:80], lines[-1])
        self.s.watcher.send_signal(signal.SIGTERM)
        self.s.finish(1)
        self.a.wait("the standby has gone", lambda: self.lead("status")["standbys"] == [])
        self.s = self.node("s", *ddp(LONG))
        self.a.wait("another standby", lambda: self.lead("status")["standbys"] == ["s"])
        for run in (self.a, self.b, self.s):
            run.finish()
        self.assertEqual(0, self.coordinator.wait(20))
        self.assertEqual([], self.evicted())
        self.a.assert_undisturbed_result(LONG)

    def lose(self, run, by_name):
        self.a.wait("a checkpoint on disk", lambda: self.on_disk() > 5)
        self.power_off_and_finish(run, by_name, self.on_disk(), "takes the place of node")

    def test_a_machine_loses_power(self):
        self.start(*ddp(LONG, step_time=0.1))
        self.lose(self.b, "b")

    def test_the_machine_of_rank_0_loses_power(self):
        self.start(*ddp(LONG, step_time=0.1))
        self.lose(self.a, "a")

    def test_a_machine_that_was_frozen_comes_back_too_late(self):
        """All of it stops at once, as a machine does that hangs; what it does when it wakes touches nobody."""
        self.start(*ddp(LONG, step_time=0.1))
        self.a.wait("a checkpoint on disk", lambda: self.on_disk() > 5)
        kept = self.on_disk()
        frozen = list(self.b.processes())
        for pid in frozen:
            kill(pid, signal.SIGSTOP)
        self.a.wait("the eviction", lambda: self.evicted() == ["b"])
        at = self.s.step
        self.a.wait("training to go on", lambda: at() > kept)
        for pid in frozen:
            kill(pid, signal.SIGCONT)
        self.assertEqual(3, self.b.watcher.wait(30), self.b)
        self.assertIn("standby s has its place", self.b.stderr(), self.b)
        self.b.assert_nothing_left()
        for run in (self.a, self.s):
            run.finish()
        self.assert_replaced("b", "s", kept)

    def test_a_node_without_its_starter_is_lost(self):
        """With that process went the node's workers and what they had in memory; its agent says so at once."""
        self.start(*ddp(LONG, step_time=0.1))
        self.a.wait("a checkpoint on disk", lambda: self.on_disk() > 5)
        kept = self.on_disk()
        os.kill(self.b.starter(), signal.SIGKILL)
        self.assertEqual(3, self.b.watcher.wait(30), self.b)
        for run in (self.a, self.s):
            run.finish()
        self.assert_replaced("b", "s", kept)

    def test_an_agent_that_is_away_is_no_reason(self):
        self.start(*ddp(2 * LONG, step_time=0.1))
        self.b.watcher.kill()
        self.b.watcher.wait()
        at = self.a.step()
        self.a.hold("nobody is to be evicted", 12, never=self.evicted)
        self.assertGreater(self.a.step(), at + 20, self.a)
        self.b.resume()
        for run in (self.a, self.b, self.s):
            run.finish()
        self.assertEqual([], self.evicted())
        self.a.assert_undisturbed_result(2 * LONG)

    def test_a_rank_that_dies_is_restarted_in_its_place(self):
        self.start(*ddp(LONG, ["kill:3:20"], step_time=0.1))
        for run in (self.a, self.b, self.s):
            run.finish()
        self.assertEqual([], self.evicted())
        self.a.assert_undisturbed_result(LONG)

    def test_a_coordinator_that_comes_back_knows_its_standby(self):
        self.start(*ddp(LONG, step_time=0.1))
        self.coordinator.kill()
        self.coordinator.wait()
        self.coordinator = subprocess.Popen([BINARY, "coordinator", "--no-view", "--resume", str(self.lead_dir)], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.coordinator.wait)
        self.addCleanup(self.coordinator.kill)
        self.s.wait("the standby to be back", lambda: (self.lead_dir / "control.sock").exists() and self.lead("status")["standbys"] == ["s"])
        self.lose(self.b, "b")

    def test_a_checkpoint_was_on_its_way_to_disk(self):
        """One always is: what the lost node would have written of it is not waited for."""
        self.interval = "0.01"
        self.start(*ddp(LONG, step_time=0.1))
        self.a.wait("a checkpoint on disk", lambda: self.on_disk() > 5)
        self.power_off(self.b)
        self.a.wait_for_step(10, epoch=2)
        at = self.a.step()
        self.a.wait("a checkpoint of the new epoch", lambda: self.on_disk() > at)
        self.s.watcher.terminate()
        for run in (self.a, self.s):
            run.finish(1, timeout=30)

    def test_who_comes_too_many_is_refused(self):
        self.start(*ddp(LONG, step_time=0.1))
        late = self.node("t", *ddp(LONG))
        self.assertEqual(2, late.watcher.wait(30), late)
        self.assertIn("node t came after the job had begun with 2 nodes and 1 standbys", late.stderr())
        os.kill(self.a.watcher.pid, signal.SIGTERM)
        for run in (self.a, self.b, self.s):
            run.finish(1)


KERNEL_LOG = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /dev/kmsg && exec "$@"']  # FILE COMMAND...
XID = "4,1,5,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"


class TheMachineItself(StandbyTest):
    """What it says of itself, and what its tests find."""

    def test_an_xid_in_the_kernels_log(self):
        log = self.kernel_log()
        self.start(*ddp(LONG, step_time=0.1), prefix=[*KERNEL_LOG, str(log)])
        log.write_text(XID)
        self.finish_without_b()
        first, = of_the_job(self.lead("incidents"))
        self.assertEqual(("machine_fault", [{"kind": "node", "name": "b"}], True), (first["symptom"], first["suspects"], first["certain"]), first)
        self.assertIn("79", first["evidence"][0], first)
        again = [line["step"] for line in self.a.steps() if line["epoch"] > 1]
        before = max(line["step"] for line in self.a.steps() if line["epoch"] == 1)
        self.assertGreaterEqual(min(again), before - 1, first)  # out of memory: the machine was in reach

    def test_a_standby_that_is_broken_fills_no_place(self):
        log = self.kernel_log()
        self.start(*ddp(100 * LONG, step_time=0.1))
        self.s.watcher.send_signal(signal.SIGTERM)
        self.s.finish(1)
        log.write_text(XID)
        broken = self.node("broken", *ddp(LONG), prefix=[*KERNEL_LOG, str(log)])
        self.a.wait("its word", lambda: [one["name"] for one in self.lead("status")["unfit_standbys"]] == ["broken"])
        fit = self.node("fit", *ddp(LONG))
        self.a.wait("another one", lambda: self.lead("status")["standbys"] == ["broken", "fit"])
        late = self.node("late", *ddp(LONG))
        self.assertEqual(2, late.watcher.wait(60), late)
        self.assertIn("node late came after the job had begun with 2 nodes and 1 standbys", late.stderr())
        os.kill(self.a.watcher.pid, signal.SIGTERM)
        for run in (self.a, self.b, broken, fit):
            run.finish(1)

    def kernel_log(self):
        log = self.folder() / "kmsg"
        log.touch()
        if subprocess.run([*KERNEL_LOG, str(log), "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no right to give a process another kernel log")
        return log

    def finish_without_b(self):
        self.b.watcher.wait(90)  # its place is another's
        for run in (self.a, self.s):
            run.finish()
        self.assertEqual(0, self.coordinator.wait(20))
        evicted, = self.lead("status")["evicted"]
        self.assertEqual(("b", "s"), (evicted["name"], evicted["standby"]), evicted)
        self.a.assert_undisturbed_result(LONG)

    def test_a_machine_whose_disk_is_full_is_found_and_replaced(self):
        """The second crash within ten minutes: while nothing runs, each machine is tested, and the one that fails goes."""
        full = self.folder()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=777", "tmpfs", full], capture_output=True, check=False)
        if mounted.returncode != 0:
            self.skipTest("no right to mount a small file system")
        self.addCleanup(subprocess.run, ["umount", "--lazy", full], check=True)
        self.start(*ddp(LONG, ["kill:1:8:forward:1", "kill:1:16:forward:2"], step_time=0.1), env={"TMPDIR": str(full)})
        self.finish_without_b()
        crash = of_the_job(self.lead("incidents"))[1]["id"]
        second = json.loads(subprocess.run([BINARY, "why", str(crash), "--run", str(self.lead_dir), "--json"], capture_output=True, text=True, timeout=30).stdout)
        self.assertEqual(["diagnose", "evict"], [one["rung"] for one in second["decisions"]], second)
        self.assertIn("disk", second["decisions"][1]["reason"], second)
        measured = {one["name"]: one for one in json.loads((self.a.dir / f"incident_{crash}/probe.json").read_text())["measurements"]}
        self.assertTrue(measured["neighbours.receive"]["ok"] and measured["neighbours.bits"]["ok"], measured)  # with b, to and fro


class WithoutADisk(StandbyTest):
    """What the lost machine held is in its keeper's memory: each of two nodes keeps for the other."""

    def node(self, name, *args, options=(), ranks=2):
        options = ["--coordinator", f"127.0.0.1:{self.port}", "--node-name", name, *options]
        return Run(self, "ddp.py", *args, ranks=ranks, options=options)

    def lose(self, run, name):
        self.a.wait("a checkpoint that exists twice", lambda: (self.peers()["step"] or -1) > 20)
        self.power_off_and_finish(run, name, self.peers()["step"], "going on from the copy of step")

    def peers(self):
        return self.lead("status")["checkpoint"]["peers"]

    def test_a_machine_loses_power(self):
        self.start(*ddp(LONG, step_time=0.1))
        self.lose(self.b, "b")

    def test_the_machine_of_rank_0_loses_power(self):
        self.start(*ddp(LONG, step_time=0.1))
        self.lose(self.a, "a")

    def test_replicas_are_not_sent(self):
        """All ranks of data parallelism hold the same model: only what is a rank's own goes over."""
        self.start(*ddp(LONG, step_time=0.1), "--width", "1024")
        self.a.wait("a checkpoint that exists twice", lambda: (self.peers()["step"] or -1) > 5)
        peers = self.peers()
        self.assertEqual(0, peers["nodes_alone"], peers)
        self.assertLess(peers["sent_bytes"], peers["kept_bytes"] / 2, peers)
        self.s.watcher.terminate()
        self.a.watcher.terminate()
        for run in (self.a, self.b, self.s):
            run.watcher.wait(60)


class LedByANode(RunTest):
    def node(self, name, *options):
        common = ["--nnodes", "2", "--node-name", name, "--checkpoint-dir", str(self.checkpoints), "--checkpoint-interval-s", "0.3"]
        return Run(self, "ddp.py", *ddp(LONG, step_time=0.1), ranks=2, options=[*common, *options])

    def test_a_machine_loses_power(self):
        port, self.checkpoints = free_port(), self.folder() / "checkpoints"
        meets = ["--rdzv-endpoint", f"127.0.0.1:{port}"]
        a, b = self.node("a", "--node-rank", "0", "--standbys", "1", *meets), self.node("b", "--node-rank", "1", *meets)
        a.wait_for_step(1)
        s = self.node("s", "--coordinator", f"127.0.0.1:{port}")
        a.wait("the standby", lambda: a.status()["standbys"] == ["s"])
        a.wait_for_step(20)
        for pid in b.processes():
            kill(pid, signal.SIGKILL)
        b.watcher.wait(10)
        for run in (a, s):
            run.finish()
        self.assertEqual([("b", "s")], [(one["name"], one["standby"]) for one in a.status()["evicted"]], a)
        a.assert_undisturbed_result(LONG)


if __name__ == "__main__":
    unittest.main()
