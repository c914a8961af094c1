"""Two coordinators with one journal in PostgreSQL: one leads, the other stands in. Machines are folders of one machine here, as in test_nodes.py."""
import json
import os
import signal
import subprocess
import time
import unittest

from harness import BINARY, STEPS, Run, RunTest, ddp, free_port, kill
from postgres import Postgres

LONG = 3 * STEPS
WITHIN_S = 5  # a stand-in leads


class Coordinator:
    def __init__(self, test, name, url):
        self.test, self.name, self.folder = test, name, test.folder()
        self.address, self.dir = f"127.0.0.1:{free_port()}", self.folder / "run"
        words = ["--listen", self.address, "--nnodes", "2", "--standbys", "1", "--run", self.dir, "--job", "shared", "--journal", url]
        with open(self.folder / "stderr", "wb") as said:
            self.process = subprocess.Popen([BINARY, "coordinator", "--no-view", *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                            stderr=said)
        test.addCleanup(self.process.wait)
        test.addCleanup(self.process.kill)

    def ask(self, subcommand):
        answer = subprocess.run([BINARY, subcommand, "--run", self.dir, "--json"], capture_output=True, text=True, timeout=30)
        return json.loads(answer.stdout) if answer.returncode == 0 else {}

    def state(self):
        return self.ask("status").get("state")

    def leads(self):
        return "leads shared from" in self.said()

    def said(self):
        return (self.folder / "stderr").read_text()

    def __str__(self):
        return f"--- coordinator {self.name}, exit status {self.process.poll()}\n{self.said()}"


class Seen:
    """What a person needs to see when the test fails."""

    def __init__(self, test):
        self.test = test

    def __str__(self):
        found = (getattr(self.test, name, None) for name in ("first", "second", "a", "b"))
        return "\n".join(str(one) for one in found if one)


class StandIn(RunTest):
    def setUp(self):
        self.seen = Seen(self)
        self.server = Postgres(self)
        self.first = Coordinator(self, "first", self.server.url)
        self.wait("the first coordinator to lead", self.first.leads)
        self.second = Coordinator(self, "second", self.server.url)
        self.wait("the second one to stand in", lambda: self.second.state() == "stands in")

    def node(self, name, *options, steps=LONG):
        by = ["--coordinator", f"{self.first.address},{self.second.address}", "--node-name", name]
        return Run(self, "ddp.py", *ddp(steps, step_time=0.1), ranks=2, options=[*by, *options])

    def train(self, steps=LONG):
        self.a, self.b = (self.node("ab"[index], "--node-rank", str(index), steps=steps) for index in range(2))
        self.a.wait_for_step(5)

    def wait(self, what, condition, timeout=30):
        deadline = time.monotonic() + timeout
        while not (result := condition()):
            self.assertLess(time.monotonic(), deadline, f"in vain for {timeout} s: {what}\n{self.seen}")
            time.sleep(0.02)
        return result

    def wait_for_second(self):
        """Since now: until it leads, and until both agents attend it. Then both go on."""
        begin = time.monotonic()
        self.wait("the second one to lead", self.second.leads)
        took = time.monotonic() - begin
        self.wait("both agents", lambda: all(f"attending the coordinator at {self.second.address}" in run.stderr() for run in (self.a, self.b)))
        print(f"{self.id()}: led after {took:.2f} s, attended after {time.monotonic() - begin:.2f} s")
        self.assertLess(took, WITHIN_S, self.seen)

    def kill_a_rank(self, leader):
        os.kill(self.b.pids()[1], signal.SIGKILL)
        self.a.wait_for_step(0, epoch=2)
        found = [one for one in leader.ask("incidents") if one["symptom"] == "crash"]
        self.assertEqual([[{"kind": "rank", "name": "3"}]], [one["suspects"] for one in found], self.seen)

    def finish(self, *coordinators, steps=LONG):
        for run in (self.a, self.b):
            run.finish()
        for coordinator in coordinators:
            self.assertEqual(0, coordinator.process.wait(20), self.seen)
        self.a.assert_undisturbed_result(steps)
        lines = [line["step"] for line in self.a.steps() if line["epoch"] == 1]
        self.assertEqual(list(range(len(lines))), lines, self.seen)  # none was lost, none twice

    def test_the_leader_is_killed(self):
        self.train()
        self.first.process.kill()
        self.wait_for_second()
        at = self.a.step()
        self.a.wait_for_step(at + 2)
        self.assertEqual(1, self.second.ask("status")["epoch"], self.seen)
        self.kill_a_rank(self.second)
        self.finish(self.second)
        report = self.second.ask("status")  # from the journal: nobody leads any more
        self.assertEqual(("finished", 1), (report["state"], report["restarts"]), self.seen)

    def test_the_leader_is_frozen(self):
        """It holds the lock, and its session is ended; when it wakes it touches nobody."""
        self.train()
        kill(self.first.process.pid, signal.SIGSTOP)
        self.wait_for_second()
        kill(self.first.process.pid, signal.SIGCONT)
        self.assertEqual(3, self.first.process.wait(20), self.seen)
        self.assertIn(f"another coordinator leads shared: {os.uname().nodename} at {self.second.address}", self.first.said())
        self.assertEqual(["running"] * 4, [rank["state"] for rank in self.second.ask("status")["ranks"]], self.seen)
        self.finish(self.second)
        self.assertEqual(1, self.a.steps()[-1]["epoch"], self.seen)

    def test_a_start_in_vain_leaves_the_run_that_is_there(self):
        self.first.process.kill()
        self.first.process.wait()
        self.server.kill()
        again = subprocess.run(self.first.process.args, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(2, again.returncode, again.stderr)
        self.assertTrue((self.first.dir / "run.json").exists(), again.stderr)

    def test_postgres_is_away(self):
        """For 3 s: training goes on, a rank that dies meanwhile is restarted, and nobody takes over."""
        self.train()
        self.server.kill()
        begin = time.monotonic()
        self.kill_a_rank(self.first)
        self.a.hold("nobody is to take over", max(0, 3 - (time.monotonic() - begin)), never=self.second.leads)
        self.server.start()
        self.wait("the events that waited", lambda: self.first.ask("status").get("journal_errors", 0) > 0)
        self.finish(self.first, self.second)
        self.assertFalse(self.second.leads() or "out of reach" in self.a.stderr() + self.b.stderr(), self.seen)
        self.assertEqual(1, self.second.ask("status")["restarts"], self.seen)

    def test_no_place_is_given_away_while_postgres_is_away(self):
        """A node is lost then: its standby waits until the journal has that it has the place, and then the job goes on by itself."""
        self.train()
        standby = self.node("s")
        self.wait("the standby", lambda: self.first.ask("status").get("standbys") == ["s"])
        self.server.kill()
        for pid in self.b.processes():
            kill(pid, signal.SIGKILL)
        self.wait("the coordinator to say that it waits", lambda: "the job waits for it" in self.first.said())
        self.a.hold("nobody is to take the place", 1, never=lambda: "takes the place" in standby.stderr())
        self.server.start()
        self.wait("the standby to take the place", lambda: "takes the place of node 1" in standby.stderr())
        self.a.wait_for_step(6, epoch=2)
        self.first.process.kill()
        self.wait("both agents at the next one", lambda: all(f"attending the coordinator at {self.second.address}" in run.stderr()
                                                             for run in (self.a, standby)))
        self.assertEqual(["a", "s"], [node["name"] for node in self.second.ask("status")["nodes"]], self.seen)
        for run in (self.a, standby):
            run.finish()
        self.assertEqual(0, self.second.process.wait(20), self.seen)

    def test_the_row_of_the_run_is_deleted(self):
        """Nobody begins another run in its place: who leads puts it back."""
        self.train()
        self.server.ask("DELETE FROM lockstep_run")
        self.wait("the row", lambda: self.server.ask("SELECT term FROM lockstep_run") == "1")
        self.finish(self.first, self.second)
        self.assertFalse(self.second.leads() or "out of reach" in self.a.stderr() + self.b.stderr(), self.seen)


class BadInput(unittest.TestCase):
    def refused(self, *words):
        answer = subprocess.run([BINARY, "coordinator", "--no-view", "--listen", f"127.0.0.1:{free_port()}", *words], capture_output=True, text=True,
                                timeout=30)
        self.assertEqual(2, answer.returncode, answer.stderr)
        return answer.stderr

    def test_says_what_is_wrong(self):
        self.assertIn('--journal must be postgresql://', self.refused("--journal", "mysql://x", "--job", "j"))
        self.assertIn("--journal needs --job NAME", self.refused("--journal", "postgresql:///x"))
        self.assertIn("start it as before", self.refused("--journal", "postgresql:///x", "--job", "j", "--resume", "/nowhere"))


if __name__ == "__main__":
    unittest.main()
