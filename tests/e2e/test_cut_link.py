"""`lockstep drill cut-link`: a node that is a network namespace of its own is cut off while the job trains on two of them."""
import datetime
import os
import shutil
import signal
import subprocess
import unittest

from harness import BINARY, STEPS, Run, RunTest, ddp

LONG = 4 * STEPS  # at 0.1 s a step
PORT = 29500  # free: the namespaces are new


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Networks:
    """Two network namespaces, one for each node, and the link between them."""

    def __init__(self, test):
        self.names = [f"lockstep-{os.getpid()}-{letter}" for letter in "ab"]
        for name in self.names:
            ip("netns", "add", name)
            test.addCleanup(ip, "netns", "delete", name)
        ip("-n", self.names[0], "link", "add", "end0", "type", "veth", "peer", "name", "end1", "netns", self.names[1])
        for index, name in enumerate(self.names):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "address", "add", f"10.7.0.{index + 1}/24", "dev", f"end{index}")
            ip("-n", name, "link", "set", f"end{index}", "up")
        ip("-n", self.names[1], "route", "add", "default", "via", "10.7.0.1")

    def of(self, index):
        """What must be as before when a drill is over."""
        return ip("-n", self.names[index], "route") + ip("-n", self.names[index], "-o", "link", "show", "up")


def may_make_namespaces():
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    name = f"lockstep-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        ip("netns", "delete", name)
    return made


@unittest.skipUnless(may_make_namespaces(), "needs iproute2, and root that may make network namespaces")
class CutLink(RunTest):
    def start(self, *args):
        self.networks = Networks(self)
        self.a, self.b = (self.node(index, *args) for index in range(2))
        self.a.wait_for_step(5)

    def node(self, index, *args):
        options = ["--nnodes", "2", "--node-name", "ab"[index], "--node-rank", str(index), "--rdzv-endpoint", f"10.7.0.1:{PORT}", "--allow-drill"]
        return Run(self, "ddp.py", *args, ranks=2, options=options, env={"GLOO_SOCKET_IFNAME": f"end{index}"},
                   prefix=["ip", "netns", "exec", self.networks.names[index]])

    def cut(self, run, rank, seconds):
        """The drill, once it says that the link is cut."""
        process = subprocess.Popen([BINARY, "drill", "--run", str(run.dir), "cut-link", "--rank", str(rank), "--for", f"{seconds}s"],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=run.env)
        self.addCleanup(process.wait)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        self.assertIn(f"cut-link of rank {rank}", process.stdout.readline(), run)
        return process

    def losses(self):
        return [one for one in self.a.incidents() if one["symptom"] == "watcher_lost"]

    def assert_only_lost_time(self):
        """The loss of an agent was named and is over, nothing was killed, and the bits are those of a quiet run."""
        self.b.finish()
        self.a.finish()
        for loss in self.losses():
            self.assertIsNotNone(loss["closed"], self.a)
        self.assertEqual([], self.a.faults(), self.a)
        self.assertEqual(1, self.a.epoch(), self.a)
        self.a.assert_undisturbed_result(LONG)

    def test_a_node_is_cut_off_and_comes_back(self):
        self.start(*ddp(LONG, step_time=0.1))
        before = self.networks.of(1)
        drill = self.cut(self.b, 3, 8)
        at = datetime.datetime.now().timestamp()
        self.assertNotIn("end1", self.networks.of(1))
        loss = self.a.wait("the loss of an agent", self.losses)[0]
        self.assertIn("the agent of node b", loss["headline"])
        self.assertEqual("cut-link of rank 3", loss["drill"], self.a)
        self.assertLess(datetime.datetime.fromisoformat(loss["opened"]).timestamp() - at, 5, self.a)
        stuck = self.a.step()
        self.assertEqual(0, drill.wait(30), drill.stdout.read())
        self.assertEqual(before, self.networks.of(1))
        self.a.wait("the agent to be back", lambda: self.losses()[0]["closed"])
        self.a.wait("steps", lambda: self.a.step() > stuck + 3)
        self.assert_only_lost_time()

    def test_the_node_that_leads_is_cut_off(self):
        self.start(*ddp(LONG, step_time=0.1))
        before = self.networks.of(0)
        self.assertEqual(0, self.cut(self.a, 0, 6).wait(30))
        self.assertEqual(before, self.networks.of(0))
        self.a.wait("the agent to be back", lambda: all(loss["closed"] for loss in self.losses()))
        self.assert_only_lost_time()

    def assert_links_come_back_after(self, end):
        """One cut a run: a link that goes and comes twice within 30 s is told as one that flaps."""
        self.start(*ddp(LONG, step_time=0.1))
        before = self.networks.of(1)
        drill = self.cut(self.b, 2, 60)
        self.assertNotEqual(before, self.networks.of(1))
        drill.send_signal(end)
        drill.wait(10)
        self.a.wait("links to be up", lambda: self.networks.of(1) == before)
        self.assert_only_lost_time()

    def test_links_come_back_when_the_drill_is_killed(self):
        self.assert_links_come_back_after(signal.SIGKILL)

    def test_links_come_back_when_the_drill_is_interrupted(self):
        self.assert_links_come_back_after(signal.SIGINT)

    def test_a_node_that_uses_the_network_of_the_machine_is_not(self):
        run = Run(self, "ddp.py", *ddp(LONG, step_time=0.1), ranks=2, options=["--allow-drill"])
        run.wait_for_step(3)
        answer = run.ask("drill", "cut-link", "--rank", "1", "--for", "1s")
        self.assertEqual(1, answer.returncode, answer)
        self.assertIn("only a node in a network namespace of its own is cut off", answer.stderr)
        run.watcher.terminate()
        run.finish(1)


if __name__ == "__main__":
    unittest.main()
