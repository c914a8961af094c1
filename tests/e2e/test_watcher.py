"""Whoever watches goes away (coordinator and agent are one process, `lockstep run`), or the terminal does: training
goes on, and another watcher takes over."""
import fcntl
import json
import os
import shutil
import signal
import socket
import time
import unittest

from harness import STEPS, Run, RunTest, ddp

LONG = 3 * STEPS  # at 0.1 s a step: time enough to lose the watcher and to come back


class WatcherTest(RunTest):
    def start_long_job(self, *faults):
        run = Run(self, "ddp.py", *ddp(LONG, faults, step_time=0.1))
        run.wait_for_step(5)
        return run

    def kill_watcher(self, run):
        workers = run.pids()
        run.watcher.kill()
        run.watcher.wait()
        return workers

    def assert_taken_over(self, run):
        lost = [incident for incident in run.incidents() if incident["symptom"] == "watcher_lost"]
        self.assertEqual(1, len(lost), run)
        return lost[0]

    def assert_killed_and_resumed(self):
        run = self.start_long_job()
        watched_s = run.status()["ettr"]["wall_s"]
        workers = self.kill_watcher(run)
        gone_at = time.monotonic()
        run.wait_for_step(run.steps()[-1]["step"] + 5, watched=False)
        self.assertEqual("unwatched", run.status()["state"], run)
        self.assertGreaterEqual(run.status()["ettr"]["wall_s"], watched_s, run)
        self.assertIn(f"go on with `lockstep run --resume {run.dir}`", run.status()["trouble"], run)
        unwatched_s = time.monotonic() - gone_at
        run.resume()
        run.wait("adoption", lambda: run.pids() == workers)
        run.finish()
        self.assertEqual(1, run.epoch(), run)
        gone = self.assert_taken_over(run)
        self.assertRegex(gone["headline"], r"nobody watched for [0-9.]+ s$", run)
        self.assertGreaterEqual(float(gone["headline"].split()[-2]), unwatched_s, run)
        self.assertRegex(run.ask("why", str(gone["id"])).stdout, r"closed after [0-9.]+ s: the job went on\n", run)
        run.assert_undisturbed_result(LONG)


class Watcher(WatcherTest):
    def test_killed_and_resumed(self):
        self.assert_killed_and_resumed()

    def test_killed_and_then_a_rank(self):
        run = self.start_long_job()
        workers = self.kill_watcher(run)
        os.kill(workers[2], signal.SIGKILL)
        run.resume()
        run.finish()
        self.assert_taken_over(run)
        self.assertEqual([["2"]], run.suspects(), run)
        self.assertEqual(2, run.epoch(), run)
        run.assert_undisturbed_result(LONG)

    def test_killed_while_a_rank_is_stopped(self):
        run = self.start_long_job()
        workers = self.kill_watcher(run)
        os.kill(workers[3], signal.SIGSTOP)
        run.resume()
        run.finish()
        self.assert_taken_over(run)
        self.assertEqual([["3"]], run.suspects(), run)
        run.assert_undisturbed_result(LONG)

    def test_killed_again_and_again(self):
        run = self.start_long_job("kill:1:20:forward:1", "kill:2:40:forward:2")
        for step in (15, 30, 50):
            run.wait_for_step(step)
            self.kill_watcher(run)
            run.resume()
        run.finish()
        self.assertEqual([["1"], ["2"]], run.suspects(), run)
        self.assertEqual(3, run.epoch(), run)
        run.assert_undisturbed_result(LONG)

    def test_killed_with_its_word_that_an_epoch_had_ended(self):
        """A job was stopped before its next epoch began, and of that nothing was written down."""
        run = Run(self, "ddp.py", *ddp(LONG, step_time=0.1), options=["--start-method", "exec"])
        run.wait_for_step(5)
        store = next(pid for pid, command in run.processes().items() if "lockstep._store" in command)
        os.kill(store, signal.SIGSTOP)
        os.kill(run.pids()[2], signal.SIGKILL)
        run.wait("an epoch that waits for its store", lambda: run.epoch() == 2)
        self.kill_watcher(run)
        end_epoch(run, 2)
        os.kill(store, signal.SIGCONT)
        run.resume()
        run.finish()
        self.assertIn("epoch 2 was ended before its workers were started", json.dumps(run.incidents()), run)
        self.assertEqual(3, run.epoch(), run)
        run.assert_undisturbed_result(LONG)

    def test_starter_killed(self):
        run = self.start_long_job()
        os.kill(run.starter(), signal.SIGKILL)
        run.finish(code=3, timeout=30)
        self.assertRegex(run.stderr(), r"incident 1: node \S+ is lost, .*the starter process of node \S+ was killed.*nobody else can know how those ended")
        self.assertEqual([("node_lost", "node")], [(one["symptom"], one["suspects"][0]["kind"]) for one in run.faults()], run)
        self.assertEqual(1, run.status()["incidents"], run)
        self.assertNotIn("FAILED, first by rank", run.stderr(), run)  # it was ended for want of a starter

    def test_starter_killed_before_there_is_an_epoch(self):
        run = Run(self, "ddp.py", *ddp())
        os.kill(run.wait("the starter", run.starter), signal.SIGKILL)
        self.assertNotEqual(0, run.watcher.wait(30), run)
        self.assertIn("starter", run.stderr(), run)

    def test_inspections_are_what_they_were(self):
        """By these every file system is too full; the file is gone when another watcher comes."""
        settings = self.folder() / "inspect.toml"
        settings.write_text('[disk_full]\ninterval_s = 0.1\nthreshold_share = 1\ntolerance_s = 0\nreadings = 1\nclass = "warning"\n')
        run = Run(self, "ddp.py", *ddp(LONG, step_time=0.1), options=["--inspect", str(settings)])
        run.wait("the alert", lambda: "disk_full" in run.stderr())
        run.wait_for_step(5)
        self.kill_watcher(run)
        settings.unlink()
        run.resume()
        run.wait("the alert again", lambda: "disk_full" in run.stderr())
        run.finish()
        self.assertEqual(1, run.epoch(), run)

    def test_second_watcher_is_refused(self):
        run = self.start_long_job()
        first = run.watcher
        second = run.resume()
        self.assertEqual(2, second.wait(30), run)
        self.assertIn(str(run.dir), run.stderr(), run)
        first.kill()
        first.wait()
        contenders = [run.resume(), run.resume()]
        run.wait("one of two steps back", lambda: any(one.poll() is not None for one in contenders), watched=False)
        refused = next(one for one in contenders if one.poll() is not None)
        self.assertEqual(2, refused.returncode, run)
        run.watcher = next(one for one in contenders if one is not refused)
        run.finish()
        run.assert_undisturbed_result(LONG)

    def test_what_ranks_print_while_it_is_gone(self):
        """Is in their logs, and whoever takes over says so."""
        done, script = self.folder() / "done", self.folder() / "talks.py"
        script.write_text(f"import os, time\nwhile not os.path.exists('{done}'):\n    print('still here', flush=True)\n    time.sleep(0.02)\n")
        run = Run(self, str(script), ranks=1)
        log = run.dir / "logs/rank_0.log"
        run.wait("output", lambda: "still here" in run.stdout())
        self.kill_watcher(run)
        size = log.stat().st_size
        run.wait("more output", lambda: log.stat().st_size > size + 100, watched=False)
        run.resume()
        run.wait("a word of it", lambda: "while nobody watched" in run.stderr())
        self.assertRegex(run.stderr(), rf"what ranks printed since 20[^ ]*Z, while nobody watched, is in {run.dir}/logs/rank_N.log\n")
        done.touch()
        run.finish()

    def test_killed_with_the_starter(self):
        """Nothing can be taken over: each try says so, and leaves no incident behind."""
        run = Run(self, "ddp.py", *ddp(LONG, step_time=0.1), options=["--allow-drill"])
        run.wait_for_step(5)
        starter = run.starter()
        self.kill_watcher(run)
        os.kill(starter, signal.SIGKILL)
        for _ in range(2):
            self.assertEqual(2, run.resume().wait(30), run)
            self.assertIn("nothing to adopt", run.stderr(), run)
            self.assertIn("its workers are gone: start a new run in another --run", run.stderr(), run)
        self.assertEqual([], run.incidents(), run)
        gone = "nobody watches this run; its workers are gone: start a new run"
        self.assertIn(gone, run.ask("stop").stderr, run)
        self.assertIn(gone, run.ask("status").stdout.splitlines()[0], run)
        self.assertIn(gone, run.ask("top", "--once").stdout, run)
        self.assertEqual(2, run.start("--run", str(run.dir), *run.command).wait(30), run)
        self.assertIn("already holds a run; its workers are gone: start a new run in another --run", run.stderr(), run)
        drill = run.ask("drill", "kill", "--rank", "1")
        self.assertEqual((2, True), (drill.returncode, "nobody watches this run" in drill.stderr), f"{drill}\n{run}")

    def test_its_run_directory_is_removed(self):
        """Training goes on until it must be restarted; workers are not started where they would not find us."""
        disk = self.folder() / "checkpoints"
        run = Run(self, "ddp.py", *ddp(LONG, step_time=0.1), options=["--checkpoint-dir", str(disk), "--checkpoint-interval-s", "1000"])
        run.wait_for_step(5)
        workers = run.pids()
        with self.assertRaises(BlockingIOError, msg="nor would systemd-tmpfiles remove what is old in it"):
            self.lock(run.dir)
        shutil.rmtree(run.dir)
        run.wait_for_step(15)
        os.kill(workers[2], signal.SIGKILL)
        run.finish(3)
        self.assertIn(f"the run directory {run.dir} was removed", run.stderr(), run)
        self.assertNotIn("goes on without Lockstep", run.stderr(), run)
        self.assertEqual([1], sorted({line["epoch"] for line in run.steps()}), run)
        self.assertTrue(list(disk.glob("step_*")), "what was in memory went to disk at the end")

    def test_its_journal_is_removed(self):
        run = self.start_long_job()
        self.kill_watcher(run)
        for file in run.dir.glob("journal.sqlite*"):
            file.unlink()
        self.assertEqual(2, run.resume().wait(30), run)
        self.assertIn(f"{run.dir}: it cannot be resumed (cannot open the journal {run.dir}/journal.sqlite: ", run.stderr(), run)
        self.assertIn(f"end its workers with `kill {run.starter()}`, their starter, and choose another --run", run.stderr(), run)
        self.assertFalse(list(run.dir.glob("journal.sqlite*")), "an empty one would look like that of a run that never began")
        os.kill(run.starter(), signal.SIGTERM)
        run.assert_nothing_left()

    def lock(self, folder):
        """As systemd-tmpfiles does before it removes what lies there."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_nothing_to_resume(self):
        run = Run(self, "ddp.py", *ddp())
        run.finish()
        self.assertEqual(2, run.resume().wait(30), run)
        self.assertIn("has ended", run.stderr(), run)
        self.assertRegex(run.ask("status").stdout, "^state +finished: completed\n", run)
        self.assertEqual(2, run.start("--run", str(run.dir), *run.command).wait(30), run)
        self.assertIn("already holds a run; it has ended (completed): choose another --run for a new one", run.stderr(), run)
        self.assertEqual(2, run.start("--resume", str(run.folder)).wait(30), run)
        self.assertIn("holds no run", run.stderr(), run)


class Terminal(RunTest):
    def test_goes_away(self):
        """Its live view is read once and then no more: a full terminal holds nobody up."""
        ours, theirs = os.openpty()
        run = Run(self, "ddp.py", *ddp(), terminal=theirs)
        os.close(theirs)
        os.set_blocking(ours, False)
        shown = bytearray()
        run.wait("the live view", lambda: b"rank" in read_into(shown, ours))
        run.wait_for_step(10)
        os.close(ours)
        run.finish()
        self.assertEqual([], run.incidents(), run)
        run.assert_undisturbed_result()


    def test_that_nobody_reads(self):
        """Stopped by Ctrl-S: ranks are watched, and repaired, all the same."""
        ours, theirs = os.openpty()
        self.addCleanup(os.close, ours)
        fill(theirs)
        run = Run(self, "ddp.py", *ddp(LONG, step_time=0.1), terminal=theirs)
        os.close(theirs)
        run.wait_for_step(40)
        os.kill(run.pids()[1], signal.SIGKILL)
        run.finish(timeout=90)
        self.assertEqual([["1"]], run.suspects(), run)
        run.assert_undisturbed_result(LONG)


PRINTS_MUCH = """
import os, pathlib, sys, time
here, go, printed = map(pathlib.Path, sys.argv[1:])
here.touch()
while not go.exists():
    time.sleep(0.01)
for letter in b"abcde":
    line = bytes([letter]) * 999_999 + b"\\n"
    while line:
        line = line[os.write(1, line):]
printed.touch()
"""


class Console(RunTest):
    def script(self, text):
        path = self.folder() / "prints.py"
        path.write_text(text)
        return str(path)

    def test_of_much_at_once_nothing_is_lost(self):
        """Far more than sockets and pipes hold, to a watcher that is busy; then the rank ends, and with it the run."""
        here, go, printed = (self.folder() / name for name in ("here", "go", "printed"))
        run = Run(self, self.script(PRINTS_MUCH), *map(str, (here, go, printed)), ranks=1)
        run.wait("the rank", here.exists)
        run.watcher.send_signal(signal.SIGSTOP)
        go.touch()
        run.wait("all to be printed", printed.exists)
        run.watcher.send_signal(signal.SIGCONT)
        run.finish()
        self.assertEqual([(letter, 999_999) for letter in "abcde"], [(line[:1], len(line)) for line in run.stdout().splitlines()])

    def test_a_last_line_without_an_end(self):
        """Where all goes to one file, what we say begins a line."""
        run = Run(self, self.script("print('no newline', end='')"), ranks=1, prefix=("sh", "-c", 'exec "$0" "$@" 2>&1'))
        run.finish()
        self.assertEqual("no newline\nlockstep: completed\n", run.stdout())


def end_epoch(run, epoch):
    """As a watcher does, for which the starter takes us."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as starter:
        starter.settimeout(30)
        starter.connect(str(run.dir / "starter.sock"))
        starter.send(json.dumps({"op": "kill", "epoch": epoch}).encode())
        while not is_stop_of(epoch, starter.recv(1 << 20)):
            pass


def is_stop_of(epoch, packet):
    """Of what it sends, all but the output of ranks is JSON."""
    event = json.loads(packet) if packet.startswith(b"{") else {}
    return (event.get("event"), event.get("epoch")) == ("stopped", epoch)


def fill(terminal):
    os.set_blocking(terminal, False)
    try:
        while True:
            os.write(terminal, bytes(4096))
    except BlockingIOError:
        os.set_blocking(terminal, True)


def read_into(shown, terminal):
    try:
        shown += os.read(terminal, 65536)
    except BlockingIOError:
        pass
    return shown


if __name__ == "__main__":
    unittest.main()
