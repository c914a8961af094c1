"""`lockstep top` on a pseudo-terminal and a real job: what is on the screen, what keys do, what is left at the end."""
import re
import signal
import unittest

from harness import BINARY, STEPS, Run, RunTest, ddp
from terminal import Terminal

LONG = 20 * STEPS


class TopTest(RunTest):
    def start_job(self, *faults):
        run = Run(self, "ddp.py", *ddp(LONG, faults, step_time=0.1))
        run.wait_for_step(3)
        return run

    def top(self, run, **size):
        return Terminal(self, [BINARY, "top", "--run", str(run.dir)], env=run.env, **size)

    def stop_job(self, run):
        run.ask("stop")
        run.finish(code=1)


class Screen(TopTest):
    def test_the_job_moves(self):
        run = self.start_job()
        top = self.top(run)
        first = step_of(top.wait("four ranks", lambda screen: screen.count("running") >= 5))
        top.wait("a later step", lambda screen: step_of(screen) > first)
        top.type("q")
        self.assertEqual(0, top.end())
        self.stop_job(run)

    def test_keys(self):
        run = self.start_job("kill:2:5")
        run.wait("a repaired job", lambda: run.epoch() == 2 and run.incidents() and run.incidents()[0]["closed"])
        top = self.top(run)
        top.wait("the incident below", lambda screen: "#1 rank 2 was killed" in screen)
        top.wait("rank 0 selected", lambda screen: "> rank 0" in screen)
        top.type("j\x1b[B")
        top.wait("rank 2 selected", lambda screen: "> rank 2" in screen)
        top.type("\r")
        top.wait("its stacks", lambda screen: "stacks of rank 2" in screen and "main thread" in screen)
        top.type("\x1b")
        top.wait("the same row", lambda screen: "> rank 2" in screen)
        top.type("i")
        top.wait("what was done", lambda screen: "restart: restart of all 4 ranks" in screen)
        top.type("?")
        top.wait("the help", lambda screen: "this help" in screen)
        top.type("\x1b")
        top.wait("all ranks", lambda screen: "> rank 0" in screen)
        top.type("q")
        self.assertEqual(0, top.end())
        self.assertEqual(1, len(run.incidents()), run)
        self.stop_job(run)

    def test_another_size(self):
        run = self.start_job()
        top = self.top(run)
        top.wait("four ranks", lambda screen: "rank 3" in screen)
        top.resize(5, 40)
        top.wait("folded ranks", lambda screen: "q quit" in screen.splitlines()[-1] and "rank 3" not in screen)
        top.resize(30, 120)
        top.wait("four ranks again", lambda screen: "rank 3" in screen and "q quit" in screen.splitlines()[-1])
        top.type("q")
        self.assertEqual(0, top.end())
        self.stop_job(run)

    def test_a_run_that_ends(self):
        run = self.start_job()
        top = self.top(run, columns=120)
        top.wait("four ranks", lambda screen: "rank 3" in screen)
        run.ask("stop")
        run.watcher.wait()
        top.wait("how it ended", lambda screen: "finished: stopped by" in screen and "no rank runs now" in screen)
        top.wait("no trouble", lambda screen: "q quit" in screen.splitlines()[-1])
        top.type("q")
        self.assertEqual(0, top.end())
        run.finish(code=1)

    def test_nobody_watches(self):
        run = self.start_job()
        top = self.top(run)
        top.wait("four ranks", lambda screen: "rank 3" in screen)
        run.watcher.kill()
        run.watcher.wait()
        top.wait("word of it", lambda screen: "nobody watches" in screen)
        run.resume()
        top.wait("four ranks again", lambda screen: "rank 3" in screen and "nobody watches" not in screen)
        top.type("q")
        self.assertEqual(0, top.end())
        self.stop_job(run)


class End(TopTest):
    def test_signals(self):
        run = self.start_job()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            top = self.top(run)
            top.wait("four ranks", lambda screen: "rank 3" in screen)
            top.process.send_signal(number)
            self.assertEqual(0, top.end())
        top = self.top(run)
        top.wait("four ranks", lambda screen: "rank 3" in screen)
        top.type("\x03")
        self.assertEqual(0, top.end())
        self.stop_job(run)

    def test_no_terminal(self):
        run = self.start_job()
        refused = run.ask("top")
        self.assertEqual(2, refused.returncode, run)
        self.assertIn("--once", refused.stderr)
        once = run.ask("top", "--once")
        self.assertEqual((0, ""), (once.returncode, once.stderr), run)
        self.assertEqual(24, len(once.stdout.splitlines()))
        self.assertIn("rank 3", once.stdout)
        self.assertNotIn("\x1b", once.stdout)
        self.stop_job(run)


def step_of(screen):
    found = re.search(r"step (\d+)", screen.splitlines()[0])
    return int(found[1]) if found else -1


if __name__ == "__main__":
    unittest.main()
