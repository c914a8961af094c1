"""A job on several nodes, which are folders of one machine here: each has a `lockstep run`, an agent and a starter of its own, and two ranks."""
import datetime
import os
import signal
import socket
import subprocess
import time
import unittest

from harness import BINARY, STEPS, Run, RunTest, ddp, free_port

LONG = 3 * STEPS  # at 0.1 s a step: time enough to lose an agent and to have it back


class Nodes(RunTest):
    def node(self, index, port, *args, nodes="2", options=(), by=None):
        """by: how it is told who leads; default: static rendezvous."""
        meeting = by or ["--node-rank", str(index), "--rdzv-endpoint", f"127.0.0.1:{port}"]
        options = ["--nnodes", nodes, "--node-name", "abc"[index], *meeting, *options]
        return Run(self, "ddp.py", *args, ranks=2, options=options)

    def start(self, *args, options=()):
        port = free_port()
        self.a, self.b = (self.node(index, port, *args, options=options) for index in range(2))

    def finish(self, code=0):
        self.b.finish(code)
        self.a.finish(code)

    def lost_agents(self):
        return [one for one in self.a.incidents() if "the agent of node b" in one["headline"]]

    def wait_for_loss(self, since, within):
        """Noticed so soon by the run's own clock: what asking takes on a busy machine is not its fault."""
        lost = self.a.wait("the loss of an agent", self.lost_agents)[0]
        opened = datetime.datetime.fromisoformat(lost["opened"]).timestamp()
        self.assertLess(opened - since, within, self.a)
        self.assertIsNone(lost["closed"], self.a)

    def test_crash_on_each_node(self):
        self.start(*ddp(LONG, ["kill:0:8", "kill:3:16:forward:2", "kill:2:24:forward:3"], step_time=0.1))
        self.finish()
        self.assert_repaired(self.a, [0, 3, 2], {"crash"})
        self.assertTrue(all(incident["steps_lost"] <= 4 for incident in self.a.faults()), self.a)
        self.a.assert_undisturbed_result(LONG)

    def test_stopped_and_blocked_on_the_other_node(self):
        self.start(*ddp(LONG, ["stop:3:10", "skip:2:40:loss:2"]), options=["--blocked-limit-s", "3"])
        self.finish()
        self.assertEqual([["3"], ["2"]], self.a.suspects(), self.a)
        stacks = (self.b.dir / "incident_1/stacks.txt").read_text()
        self.assertIn("rank 2 (pid", stacks)
        self.assertIn("rank 3 (pid", stacks)
        self.a.assert_undisturbed_result(LONG)

    def test_checkpoints_go_on(self):
        """Steps far shorter than the way of the news: the nodes hear of a commit at different steps, again and again."""
        self.start(*ddp(500, ["kill:3:450"], step_time=0.01))
        self.finish()
        lost, = (incident["steps_lost"] for incident in self.a.faults())
        self.assertLess(lost, 100, self.a)  # a second, and a loaded machine's time

    def test_agent_killed_and_resumed(self):
        self.start(*ddp(LONG, step_time=0.1))
        self.a.wait_for_step(5)
        begin = time.time()
        self.b.watcher.kill()
        self.b.watcher.wait()
        self.wait_for_loss(begin, within=1)
        at = self.a.step()
        self.a.wait("training to go on", lambda: self.a.step() > at + 3)
        self.b.resume()
        self.a.wait("the agent to be back", lambda: self.lost_agents()[0]["closed"])
        os.kill(self.b.pids()[1], signal.SIGKILL)
        self.finish()
        self.assertEqual([["3"]], self.a.suspects(), self.a)
        self.a.assert_undisturbed_result(LONG)

    def test_agent_silent(self):
        self.start(*ddp(2 * LONG, step_time=0.1))
        self.a.wait_for_step(5)
        begin = time.time()
        os.kill(self.b.watcher.pid, signal.SIGSTOP)
        self.wait_for_loss(begin, within=5)
        os.kill(self.b.watcher.pid, signal.SIGCONT)
        self.a.wait("the agent to be back", lambda: self.lost_agents()[0]["closed"])
        self.finish()
        self.assertEqual(1, self.a.epoch(), self.a)
        self.a.assert_undisturbed_result(2 * LONG)

    def test_a_rank_dies_while_nobody_leads(self):
        """Node a's `lockstep run` has the coordinator, too."""
        self.start(*ddp(LONG, step_time=0.1))
        self.a.wait_for_step(5)
        victim = self.b.pids()[0]
        self.a.watcher.kill()
        self.a.watcher.wait()
        os.kill(victim, signal.SIGKILL)
        self.a.resume()
        self.finish()
        self.assertEqual([["2"]], self.a.suspects(), self.a)
        self.assertIn("is out of reach", self.b.stderr())
        self.a.assert_undisturbed_result(LONG)

    def test_coordinator_of_its_own(self):
        port, folder = free_port(), self.folder()
        lead = [BINARY, "coordinator", "--no-view", "--run", str(folder / "lead")]
        coordinator = self.coordinate([*lead, "--listen", f"127.0.0.1:{port}"])
        by = ["--coordinator", f"127.0.0.1:{port}"]
        self.a, self.b = (self.node(index, port, *ddp(LONG, ["kill:3:40"], step_time=0.1), by=by) for index in range(2))
        self.a.wait("some steps", lambda: len(self.a.steps() + self.b.steps()) >= 5)
        coordinator.kill()
        coordinator.wait()
        coordinator = self.coordinate([BINARY, "coordinator", "--no-view", "--resume", str(folder / "lead")])
        self.finish()
        self.assertEqual(0, coordinator.wait(20))
        report = subprocess.run([BINARY, "incidents", "--run", str(folder / "lead")], capture_output=True, text=True, check=True).stdout
        self.assertIn("rank 3 was killed by a signal", report)
        first = self.a if self.a.out.exists() else self.b  # they took their places as they came
        first.assert_undisturbed_result(LONG)

    def coordinate(self, command):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_whoever_has_the_address_leads(self):
        by = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=7"]
        runs = [self.node(index, 0, *ddp(), nodes="3", by=by) for index in range(3)]
        for run in runs:
            run.finish()
        leading = [run for run in runs if "nodes are here" in run.stderr()]
        self.assertEqual(1, len(leading))

    def test_starter_killed(self):
        """With it went the workers of its node and their checkpoints: the job can't go on, and all nodes are told."""
        self.start(*ddp(LONG, step_time=0.1))
        self.a.wait_for_step(5)
        os.kill(self.b.starter(), signal.SIGKILL)
        self.finish(1)
        self.assertIn("the starter process was killed", self.b.stderr())

    def test_stop_from_any_node(self):
        self.start(*ddp(LONG, step_time=0.1))
        self.a.wait_for_step(5)
        self.b.watcher.send_signal(signal.SIGTERM)
        self.finish(1)
        self.assertIn("stopped by SIGTERM", self.a.stderr())


class BadInput(RunTest):
    def begin(self, *words):
        process = subprocess.Popen([BINARY, "run", "--no-view", "--python", "/usr/bin/python3", "--run", str(self.folder() / "run"),
                                    *words, os.devnull], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def lead(self, port, *words):
        process = self.begin("--nnodes=2", "--node-rank=0", "--node-name=a", f"--rdzv-endpoint=127.0.0.1:{port}", *words)
        while "nodes are here" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        return process

    def assert_refused(self, sentence, *words):
        process = self.begin(*words)
        said, _ = process.communicate(timeout=30)
        self.assertEqual(2, process.returncode, said)
        self.assertIn(sentence, said)

    def test_coordinator_unreachable(self):
        endpoint = f"127.0.0.1:{free_port()}"
        self.assert_refused(f"the coordinator at {endpoint} is out of reach", "--nnodes=2", "--node-rank=1",
                            f"--rdzv-endpoint={endpoint}", "--rdzv-conf=join_timeout=1")

    def test_who_does_not_fit_is_refused_by_name(self):
        port = free_port()
        self.lead(port)
        meet = [f"--coordinator=127.0.0.1:{port}"]
        self.assert_refused("two agents have --node-rank 0: node a and node b", "--nnodes=2", "--node-rank=0", "--node-name=b", *meet)
        self.assert_refused("node b says --nnodes 3, node a says --nnodes 2", "--nnodes=3", "--node-rank=1", "--node-name=b", *meet)
        self.assert_refused("two nodes have the name a", "--nnodes=2", "--node-rank=1", "--node-name=a", *meet)

    def test_port_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            self.assert_refused(f"can't listen on 127.0.0.1:{port}", "--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}")

    def test_who_waits_can_be_stopped(self):
        process = self.lead(free_port())
        process.send_signal(signal.SIGINT)
        self.assertEqual(2, process.wait(10))

    def test_nowhere_to_meet(self):
        self.assert_refused("say where the nodes meet", "--nnodes=2")


if __name__ == "__main__":
    unittest.main()
