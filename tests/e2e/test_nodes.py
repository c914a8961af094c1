"""A job on several nodes, which are folders of one machine here: each has a `lockstep run`, an agent and a starter of its own, and two ranks."""
import datetime
import json
import os
import signal
import socket
import subprocess
import time
import unittest

from harness import BINARY, STEPS, Run, RunTest, ddp, free_port, kill

LONG = 3 * STEPS  # at 0.1 s a step: time enough to lose an agent and to have it back


class NodesTest(RunTest):
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


class Nodes(NodesTest):
    def lost_agents(self):
        return [one for one in self.a.incidents() if "the agent of node b" in one["headline"]]

    def wait_for_loss(self, since, within):
        """Noticed so soon by the run's own clock: what asking takes on a busy machine is not its fault."""
        lost = self.a.wait("the loss of an agent", self.lost_agents)[0]
        opened = datetime.datetime.fromisoformat(lost["opened"]).timestamp()
        self.assertLess(opened - since, within, self.a)
        self.assertIsNone(lost["closed"], self.a)

    def test_crash_on_each_node(self):
        self.start(*ddp(LONG, ["kill:0:8", "kill:3:16:forward:2", "kill:2:24:forward:3"], step_time=0.1), options=["--metrics-port", "0"])
        self.finish()
        self.assert_repaired(self.a, [0, 3, 2], {"crash"})
        for fault, step in zip(self.a.faults(), (8, 16, 24)):
            self.assertRegex(fault["headline"], rf"in step {step}$", self.a)
        self.assertIn("/metrics", self.a.stderr())
        self.assertIn("--metrics-port serves nothing here: this node does not lead the job: ask where its coordinator runs (127.0.0.1:", self.b.stderr())
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
        follows = self.b.status()
        self.assertEqual(["running", 1, None], [follows[key] for key in ("state", "epoch", "furthest_step")], follows)
        self.assertGreater(follows["step"], 0, follows)
        begin = time.time()
        self.b.watcher.kill()
        self.b.watcher.wait()
        self.wait_for_loss(begin, within=1)
        at = self.a.step()
        self.a.wait("training to go on", lambda: self.a.step() > at + 3)
        self.assertEqual(["running", "running", "unknown", "unknown"], [rank["state"] for rank in self.a.status()["ranks"]], self.a)
        self.assertEqual(["b"], self.a.status()["checkpoint"]["waits_for"], self.a)
        self.a.wait("what a fault costs now", lambda: "while the agent of node b is away: a fault now costs the steps since" in self.a.stderr())
        self.b.resume()
        self.a.wait("the agent to be back", lambda: self.lost_agents()[0]["closed"])
        at = self.a.status()["checkpoint"]["step"]
        self.a.wait("checkpoints to go on", lambda: self.a.status()["checkpoint"]["step"] > at + 1)
        self.assertEqual([], self.a.status()["checkpoint"]["waits_for"], self.a)
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

    def test_coordinator_silent(self):
        """It is not the fault of the agents, which give it up and come anew."""
        self.start(*ddp(2 * LONG, step_time=0.1))
        self.a.wait_for_step(5)
        os.kill(self.a.watcher.pid, signal.SIGSTOP)
        self.b.wait("the coordinator to be missed", lambda: "is out of reach (nothing heard" in self.b.stderr())
        os.kill(self.a.watcher.pid, signal.SIGCONT)
        self.b.wait("it to be attended again", lambda: "attending the coordinator" in self.b.stderr())
        self.a.wait("it to be written down", self.a.incidents)
        os.kill(self.b.pids()[1], signal.SIGKILL)
        self.finish()
        gone, killed = (one["headline"] for one in self.a.incidents())
        self.assertIn("the coordinator was gone: nobody watched for", gone, self.a)
        self.assertIn("rank 3 was killed", killed, self.a)
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

    def test_an_agent_that_finds_another_run_ends_its_ranks(self):
        """Node a, which led, is gone, and its address is another coordinator's."""
        port = free_port()
        self.a, self.b = (self.node(index, port, *ddp(LONG, step_time=0.1)) for index in range(2))
        self.a.wait_for_step(5)
        machine = [self.a.starter(), *self.a.pids()[:2]]
        for run in self.a, self.b:
            run.watcher.kill()
            run.watcher.wait()
        for pid in machine:
            os.kill(pid, signal.SIGKILL)
        path = self.b.dir / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"adoption_s": 5}))
        self.coordinate([BINARY, "coordinator", "--no-view", "--run", str(self.folder() / "other"), "--listen", f"127.0.0.1:{port}"])
        self.b.resume()
        self.b.wait("the other run", lambda: "our coordinator is looked for further" in self.b.stderr())
        self.b.finish(3)
        self.assertIn("no rank of this node has finished a step since", self.b.stderr())

    def test_coordinator_of_its_own(self):
        port, folder = free_port(), self.folder()
        lead = [BINARY, "coordinator", "--no-view", "--allow-drill", "--run", str(folder / "lead")]
        coordinator = self.coordinate([*lead, "--listen", f"127.0.0.1:{port}"])
        drill = [BINARY, "drill", "--run", str(folder / "lead")]
        by = ["--coordinator", f"127.0.0.1:{port}"]
        self.a, self.b = (self.node(index, port, *ddp(LONG, ["kill:3:40"], step_time=0.1), by=by) for index in range(2))
        self.a.wait("some steps", lambda: len(self.a.steps() + self.b.steps()) >= 5)
        refused = subprocess.run([*drill, "kill", "--rank", "0"], capture_output=True, text=True)
        self.assertEqual(2, refused.returncode, refused.stderr)
        self.assertIn("only kill-coordinator can be drilled here", refused.stderr)
        subprocess.run([*drill, "kill-coordinator"], check=True, capture_output=True)
        self.assertEqual(-signal.SIGKILL, coordinator.wait())
        coordinator = self.coordinate([BINARY, "coordinator", "--no-view", "--resume", str(folder / "lead")])
        names = {run.status()["job"] for run in (self.a, self.b)}
        self.a.wait("the coordinator to lead", lambda: self.status_of(folder / "lead").get("job") in names)
        self.finish()
        self.assertEqual(0, coordinator.wait(20))
        report = subprocess.run([BINARY, "incidents", "--run", str(folder / "lead")], capture_output=True, text=True, check=True).stdout
        self.assertIn("rank 3 was killed by a signal", report)
        self.assertIn("[drill]", report)
        first = self.a if self.a.out.exists() else self.b  # they took their places as they came
        first.assert_undisturbed_result(LONG)

    def status_of(self, run_dir):
        answer = subprocess.run([BINARY, "status", "--run", str(run_dir), "--json"], capture_output=True, text=True)
        return json.loads(answer.stdout) if answer.returncode == 0 else {}

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
        self.finish(3)
        self.assertIn("the starter process of node b was killed", self.a.stderr())
        self.assertNotIn("training goes on", self.b.stderr())
        self.assertEqual([("node_lost", [{"kind": "node", "name": "b"}])], [(one["symptom"], one["suspects"]) for one in self.a.faults()], self.a)

    def test_stop_from_any_node(self):
        self.start(*ddp(LONG, step_time=0.1))
        self.a.wait_for_step(5)
        for run, nodes in ((self.a, "aabb"), (self.b, "bb")):
            self.assertEqual(nodes, "".join(rank["node"] for rank in run.status()["ranks"]), run)
            self.assertIn(f"{len(nodes)} ranks", run.ask("top", "--once").stdout, run)
        self.b.watcher.send_signal(signal.SIGTERM)
        self.finish(1)
        self.assertIn("stopped by SIGTERM", self.a.stderr())


class OnDisk(NodesTest):
    def setUp(self):
        self.directory = self.folder() / "checkpoints"

    def train(self, *args, interval=0.3, options=()):
        self.start(*args, options=["--checkpoint-dir", str(self.directory), "--checkpoint-interval-s", str(interval), *options])

    def checkpoints(self):
        """Steps of those that are whole, newest first."""
        answer = subprocess.run([BINARY, "checkpoint", "list", str(self.directory), "--json"], capture_output=True, text=True, timeout=60)
        listed = json.loads(answer.stdout)["checkpoints"]
        self.assertTrue(all((one["world_size"], one["state"]) == (4, "complete") for one in listed), listed)
        return [one["step"] for one in listed]

    def first_step(self):
        return min(line["step"] for line in self.a.steps())

    def power_off(self, *runs):
        for run in runs:
            for pid in run.processes():
                kill(pid, signal.SIGKILL)
            run.watcher.wait(10)

    def kept(self):
        return self.a.status()["checkpoint"]["peers"]["step"] or -1

    def test_both_nodes_lose_power(self):
        self.train(*ddp(LONG, step_time=0.05))
        self.a.wait("a checkpoint on disk", lambda: self.directory.exists() and self.checkpoints()[:1] > [8])
        self.power_off(self.a, self.b)
        newest = self.checkpoints()[0]
        self.train(*ddp(LONG, step_time=0.05), interval=600)
        self.finish()
        self.assertEqual(newest + 1, self.first_step(), self.a)
        for run in (self.a, self.b):
            self.assertIn(f"going on from {self.directory}/step_{newest:012}", run.stderr(), run)
        self.a.assert_undisturbed_result(LONG)
        last, before = self.checkpoints()
        self.assertEqual(newest, before, self.a)
        self.assertLess(LONG - 20, last, self.a)  # of several nodes, the newest that was whole on all of them

    def test_damaged_for_one_node(self):
        """The newest one is no choice for the node that has rank 3, so it is none for the other."""
        self.train(*ddp(12, step_time=0.1))
        self.finish()
        newest, older = self.checkpoints()
        path = next(self.directory.glob(f"step_{newest:012}_*")) / "rank_00003.safetensors"
        data = bytearray(path.read_bytes())
        data[-100] ^= 4
        path.write_bytes(data)
        self.train(*ddp())
        self.finish()
        self.assertEqual(older + 1, self.first_step(), self.a)
        self.assertIn("not loaded: ", self.b.stderr(), self.b)
        self.a.assert_undisturbed_result()

    def test_sigterm_flushes(self):
        self.train(*ddp(LONG, step_time=0.1), interval=600)
        self.a.wait_for_step(8)
        self.b.watcher.terminate()
        self.finish(1)
        last, = self.checkpoints()
        self.assertGreaterEqual(last, 7, self.a)
        self.assertGreaterEqual(last, max(line["step"] for line in self.a.steps()), self.a)

    def test_sigterm_after_a_node_was_lost(self):
        """What it held is in the memory of the other one, which writes both parts."""
        self.train(*ddp(LONG, step_time=0.1), interval=600)
        self.a.wait_for_step(1)
        self.a.wait("a checkpoint that exists twice", lambda: self.kept() > 8)
        kept = self.kept()
        self.power_off(self.b)
        self.a.watcher.terminate()
        self.a.finish(1)
        last, = self.checkpoints()
        self.assertGreaterEqual(last, kept, self.a)
        self.train(*ddp(LONG, step_time=0.1), interval=600)
        self.finish()
        self.assertEqual(last + 1, self.first_step(), self.a)
        self.a.assert_undisturbed_result(LONG)

    def test_directories_are_not_the_same(self):
        """As on machines whose disks are their own: said, and training goes on."""
        port, own = free_port(), [self.folder() for _ in range(2)]
        self.a, self.b = (self.node(index, port, *ddp(), options=["--checkpoint-dir", str(own[index]), "--checkpoint-interval-s", "0.2"])
                          for index in range(2))
        self.finish()
        self.assertIn("rank_00002.safetensors was written and is not here: all nodes must see the same directory", self.a.stderr(), self.a)
        self.a.assert_undisturbed_result()
        self.assertEqual([], [*own[0].glob("step_*"), *own[0].glob(".incoming*")])

    def test_another_world_size(self):
        self.train(*ddp(8), interval=600)
        self.finish()
        port = free_port()
        disk = ["--checkpoint-dir", str(self.directory)]
        runs = [self.node(index, port, *ddp(), nodes="3", options=disk) for index in range(3)]
        for run in runs:
            self.assertEqual(2, run.watcher.wait(30), run)
            self.assertIn("was written by 4 ranks, this job has 6", run.stderr(), run)


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

    def assert_refused(self, sentence, *words, code=2):
        process = self.begin(*words)
        said, _ = process.communicate(timeout=30)
        self.assertEqual(code, process.returncode, said)
        self.assertIn(sentence, said)

    def test_coordinator_unreachable(self):
        endpoint = f"127.0.0.1:{free_port()}"
        self.assert_refused(f"the coordinator at {endpoint} is out of reach", "--nnodes=2", "--node-rank=1",
                            f"--rdzv-endpoint={endpoint}", "--rdzv-conf=join_timeout=1", code=3)

    def test_who_leads_does_not_wait_for_ever(self):
        self.assert_refused("not all nodes came within 1 s: 1 of 2 nodes are here: a", "--nnodes=2", "--node-rank=0", "--node-name=a",
                            f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-conf=join_timeout=1", code=3)

    def test_who_does_not_fit_is_refused_by_name(self):
        port = free_port()
        self.lead(port)
        meet = [f"--coordinator=127.0.0.1:{port}"]
        self.assert_refused("two agents have --node-rank 0: node a and node b", "--nnodes=2", "--node-rank=0", "--node-name=b", *meet)
        self.assert_refused("node b says --nnodes 3, node a says --nnodes 2", "--nnodes=3", "--node-rank=1", "--node-name=b", *meet)
        self.assert_refused("node b has --checkpoint-dir, node a has not", "--nnodes=2", "--node-rank=1", "--node-name=b",
                            "--checkpoint-dir", str(self.folder()), *meet)
        self.assert_refused("two nodes have the name a", "--nnodes=2", "--node-rank=1", "--node-name=a", *meet)

    def test_an_address_of_nobody_here(self):
        process = subprocess.Popen([BINARY, "coordinator", "--no-view", "--run", self.folder() / "c", "--listen", f"192.0.2.1:{free_port()}"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertIn("listens on 192.0.2.1:", process.stderr.readline())
        self.assertIn("192.0.2.1 is no address of this machine", process.stderr.readline())

    def test_port_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            self.assert_refused(f"can't listen on 127.0.0.1:{port}", "--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}")

    def test_who_waits_can_be_stopped(self):
        process = self.lead(free_port())
        process.send_signal(signal.SIGINT)
        self.assertEqual(1, process.wait(10))

    def test_nowhere_to_meet(self):
        self.assert_refused("say where the nodes meet", "--nnodes=2")


class CoordinatorBadInput(RunTest):
    def setUp(self):
        self.port, self.lead_dir = free_port(), str(self.folder() / "lead")

    def begin(self):
        """A coordinator that waits for nodes."""
        process = subprocess.Popen([BINARY, "coordinator", "--no-view", "--run", self.lead_dir, "--listen", f"127.0.0.1:{self.port}"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertIn("listens on", process.stdout.readline())
        return process

    def assert_refused(self, sentence, *words):
        answer = subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=30)
        self.assertEqual(2, answer.returncode, answer.stderr)
        self.assertIn(sentence, answer.stderr)

    def test_a_second_one_leaves_the_first_alone(self):
        process = self.begin()
        self.assert_refused(f"process {process.pid}", "coordinator", "--no-view", "--resume", self.lead_dir)
        status = subprocess.run([BINARY, "status", "--run", self.lead_dir, "--json"], capture_output=True, text=True, check=True).stdout
        self.assertEqual("waiting", json.loads(status)["state"])

    def test_one_that_did_not_begin_may_be_started_again(self):
        with socket.create_server(("127.0.0.1", self.port)):
            self.assert_refused("can't listen", "coordinator", "--no-view", "--run", self.lead_dir, "--listen", f"127.0.0.1:{self.port}")
        self.assertEqual([], os.listdir(self.lead_dir))
        for way in (signal.SIGTERM, signal.SIGKILL):
            process = self.begin()
            process.send_signal(way)
            process.wait()
            self.assertEqual(way != signal.SIGKILL, os.listdir(self.lead_dir) == [])
        self.begin()

    def test_says_how_to_go_on(self):
        process = self.begin()
        process.kill()
        process.wait()
        how = "go on with `lockstep coordinator`, started as before"
        self.assert_refused(how, "stop", "--run", self.lead_dir)
        self.assert_refused(how, "run", "--no-view", "--resume", self.lead_dir)


if __name__ == "__main__":
    unittest.main()
