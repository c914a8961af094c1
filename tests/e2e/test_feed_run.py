"""`lockstep run --feed`: data services beside a job, killed or not; and a rank that waits for its data is told as that, with what it waits for."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from harness import BINARY, ROOT, Run, RunTest, free_port
from terminal import Terminal

sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]
import lockstep.feed
from feed_service import Service

try:
    from PIL import Image
except ImportError:
    Image = None

SMALL, LARGE = 24, 6
LONG = 100_000  # steps; ended by `lockstep stop`


def noise(width, height, seed):
    """Something that takes time to decode."""
    tile = Image.effect_noise((256, 256), 80 + seed)
    image = Image.new("L", (width, height))
    for x in range(0, width, 256):
        for y in range(0, height, 256):
            image.paste(tile.rotate(90 * ((x + y) // 256 % 4)), (x, y))
    return Image.merge("RGB", [image, image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), image])


def setUpModule():
    global folder
    if Image is None:
        raise unittest.SkipTest("needs python3-pil (./dev setup)")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-data-"))
    for name, count, size in (("small", SMALL, (96, 64)), ("large", LARGE, (3072, 2304))):
        (folder / name / "class").mkdir(parents=True)
        for i in range(count):
            noise(*size, i).save(folder / name / "class" / f"{i:02}.jpg", quality=95)


def tearDownModule():
    shutil.rmtree(folder, ignore_errors=True)


class Fed(RunTest):
    def fed(self, *words, ranks=3, options=(), feeds=("small", "large")):
        self.diaries = self.folder()
        chosen = [word for name in feeds for word in ("--feed", f"{folder / name},threads=1,cache=32M")]
        return Run(self, "fed_ddp.py", "--diary", str(self.diaries), *map(str, words), ranks=ranks,
                   options=[*chosen, *options])

    def explain(self, run):
        done = subprocess.run([BINARY, "explain", str(run.dir), "--json"], capture_output=True, text=True, timeout=60)
        self.assertEqual(0, done.returncode, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(json.loads((run.dir / "run.json").read_text())["job"], report["job"])
        return report

    def causes(self, run):
        report = self.explain(run)
        return [(one["cause"], [suspect.get("rank") for suspect in one["suspects"]], " ".join(one["evidence"])) for one in report["causes"]]

    def noted(self, rank):
        path = self.diaries / str(rank)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def services(self, run):
        """{data set: pid}"""
        found = {}
        for pid, command in run.processes().items():
            if command[1:3] == ["feed", "serve"]:
                found[command[command.index("--name") + 1]] = pid
        return found

    def status(self, run, name):
        done = subprocess.run([BINARY, "feed", "status", "--socket", str(run.dir / "feed" / f"{name}.sock"), "--json"], capture_output=True, text=True,
                              timeout=30)
        return json.loads(done.stdout) if done.returncode == 0 else None


class DataStalls(Fed):
    def test_a_rank_that_waits_for_its_data(self):
        run = self.fed("--steps", LONG, "--large", 2)
        verdicts = self.stop_when_told(run, "data_slow")
        causes = self.causes(run)
        self.assertEqual(("data_loading", [2]), causes[0][:2], causes)
        self.assertIn("for data set large: decoding", causes[0][2])
        self.assertIn("of 1 threads busy)", causes[0][2])
        self.assertNotIn("worker", [cause for cause, _, _ in causes], causes)
        told = [(one["symptom"], one["suspects"]) for one in run.incidents() if one["symptom"] != "communication_slow"]
        self.assertEqual([("data_slow", [{"kind": "rank", "name": "2"}])], told, run)
        (verdict,) = [one for one in verdicts if one["syndrome"] == "data_slow"]
        self.assertEqual([{"rank": 2}], verdict["suspects"], verdict)
        self.assertIn("rank 2 waited for data set large: decoding", verdict["evidence"][0])
        self.assertNotIn("non_communication_slow", [one["syndrome"] for one in verdicts])

    def test_all_ranks_wait_for_their_data(self):
        run = self.fed("--steps", LONG, "--large", 0, 1, 2, "--batch", 1)
        verdicts = self.stop_when_told(run, "data_slow", [])
        causes = self.causes(run)
        self.assertEqual("data_loading", causes[0][0], causes)
        self.assertIn("for data set large: ", causes[0][2])
        self.assertIn(("data_slow", []), [(one["symptom"], one["suspects"]) for one in run.incidents()], run)
        # A rank that the service comes to last is told beside it.
        (verdict,) = [one for one in verdicts if one["syndrome"] == "data_slow" and not one["suspects"]]
        self.assertGreater(verdict["price"]["share"], 0.2, verdict)

    def test_a_rank_whose_own_functions_are_slow(self):
        run = self.fed("--steps", LONG, "--own", "1:0.15", feeds=["small"])
        self.stop_when_told(run, "data_slow")
        cause, ranks, evidence = self.causes(run)[0]
        self.assertEqual(("data_loading", [1]), (cause, ranks), run)
        self.assertIn("for data set small: the script's own functions", evidence)

    def test_a_rank_that_is_slow_for_another_reason(self):
        run = self.fed("--steps", LONG, "--slow", "1:0.15", feeds=["small"])
        self.stop_when_told(run, "non_communication_slow")
        causes = self.causes(run)
        self.assertEqual(("worker", [1]), causes[0][:2], causes)
        self.assertNotIn("data_loading", [cause for cause, _, _ in causes], causes)
        self.assertIn(("non_communication_slow", [{"kind": "rank", "name": "1"}]), [(one["symptom"], one["suspects"]) for one in run.incidents()], run)
        self.assertNotIn("data_slow", [one["symptom"] for one in run.incidents()], run)

    def stop_when_told(self, run, symptom, suspects=None):
        """What `diagnose` said before."""
        run.wait(f"word of {symptom}", lambda: any(one["symptom"] == symptom and suspects in (None, one["suspects"]) for one in run.incidents()))
        verdicts = self.diagnose(run)["verdicts"]
        run.ask("stop")
        run.finish(code=1)
        return verdicts

    def diagnose(self, run):
        done = subprocess.run([BINARY, "diagnose", str(run.dir), "--json"], capture_output=True, text=True, timeout=60)
        self.assertEqual(0, done.returncode, done.stderr)
        return json.loads(done.stdout)


class Top(Fed):
    def setUp(self):
        self.service = self.enterContext(Service(folder / "small", "--threads", 1, name="photos"))
        self.command = [BINARY, "feed", "top", "--socket", self.service.socket]

    def test_on_a_terminal(self):
        loader = lockstep.feed.Loader("photos", job="looked-at", batch=4, socket=self.service.socket)
        for keys in ("q", "\x03"):
            terminal = Terminal(self, self.command, columns=100)
            terminal.wait("the job", lambda screen: "looked-at" in screen and "photos  24 items" in screen)
            loader.next_batch().release()
            terminal.wait("a rate", lambda screen: re.search(r"looked-at +0/1 +0 +[\d.]+ % +[\d.]+ ", screen))
            terminal.type(keys)
            self.assertEqual(0, terminal.end())
        loader.close()

    def test_a_service_that_goes_away_is_waited_for(self):
        terminal = Terminal(self, self.command)
        terminal.wait("it", lambda screen: "photos" in screen)
        self.service.kill()
        terminal.wait("trouble", lambda screen: "no data service answers" in screen)
        self.service.start()
        terminal.wait("it again", lambda screen: "no data service answers" not in screen)
        terminal.type("q")
        self.assertEqual(0, terminal.end())

    def test_a_service_that_stands_still_keeps_no_key_waiting(self):
        terminal = Terminal(self, self.command)
        terminal.wait("it", lambda screen: "photos" in screen)
        self.service.process.send_signal(signal.SIGSTOP)
        self.addCleanup(self.service.process.send_signal, signal.SIGCONT)
        terminal.wait("trouble", lambda screen: "no answer for" in screen)
        terminal.type("q")
        self.assertEqual(0, terminal.end())

    def test_without_a_terminal_it_prints_once(self):
        done = subprocess.run(self.command, capture_output=True, text=True, timeout=30)
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        self.assertIn("photos  24 items", done.stdout)
        for what in ("read", "decode", "resize", "idle", "of 1 threads", "no jobs"):
            self.assertIn(what, done.stdout)
        self.assertNotIn("\x1b", done.stdout)
        self.service.kill()
        done = subprocess.run(self.command, capture_output=True, text=True, timeout=30)
        self.assertEqual(2, done.returncode)
        self.assertIn("no data service answers", done.stderr)

    def test_status_tells_where_time_goes(self):
        with lockstep.feed.Loader("photos", job="a", batch=4, socket=self.service.socket) as loader:
            for batch in loader:
                pass
        time = self.service.status()["time"]
        self.assertEqual({"read", "decode", "resize", "idle"}, time["shares"].keys())
        self.assertGreater(time["shares"]["decode"], 0)
        self.assertLessEqual(sum(time["shares"].values()), 1.001)


class ServiceBeside(Fed):
    def test_killed_twice_in_the_middle(self):
        run = self.fed("--steps", 60, "--slow", "0:0.05", "--batch", 4, feeds=["small"])
        for line in (10, 25):
            run.wait(f"{line} batches", lambda at=line: len(self.noted(1)) >= at)
            pid = self.services(run)["small"]
            os.kill(pid, signal.SIGKILL)
            run.wait("another service", lambda gone=pid: self.services(run).get("small", gone) != gone)
        run.finish()  # and nothing is left
        self.assertEqual(2, run.stderr().count("the data service of small ended by signal 9 (Killed)"), run)
        self.assertFalse((run.dir / "feed" / "small.sock").exists())
        self.assertEqual(1, run.epoch(), run)
        for epoch in range(60 * 3 * 4 // SMALL - 1):  # each item once, over all ranks
            ids = [i for rank in range(3) for entry in self.noted(rank) if entry["epoch"] == epoch for i in entry["ids"]]
            self.assertEqual(list(range(SMALL)), sorted(ids), epoch)

    def test_it_outlives_a_restart_of_the_job_and_its_watcher(self):
        run = self.fed("--steps", 40, "--slow", "0:0.05", "--die", "1:12", feeds=["small"], ranks=2)
        run.wait("batches", lambda: len(self.noted(0)) >= 5)
        before, at_first = self.services(run), self.status(run, "small")["sharing"]["deliveries"]
        run.wait("the restart", lambda: run.epoch() == 2)
        run.watcher.kill()
        run.watcher.wait()
        run.resume()
        run.wait("progress", lambda: self.noted(0)[-1]["step"] >= 20)
        self.assertEqual(before, self.services(run))
        self.assertGreater(self.status(run, "small")["sharing"]["deliveries"], at_first)
        run.finish()

    def test_it_ends_with_the_starter(self):
        run = self.fed("--steps", 100000, feeds=["small"], ranks=2)
        run.wait("batches", lambda: len(self.noted(0)) >= 3)
        os.kill(run.starter(), signal.SIGKILL)
        run.finish(code=3, timeout=60)

    def test_what_can_not_begin_is_one_error(self):
        empty = self.folder() / "empty"
        empty.mkdir()
        for words, said in (([f"{empty}:x"], str(empty)), (["/nowhere/data"], "--feed /nowhere/data: /nowhere/data does not exist"),
                            ([str(folder / "small"), f"{folder}/large:small"], "another data set is called small, too"),
                            ([f"{folder}/small:a b"], '"a b" is no name'), ([f"{folder}/small,threads=0"], "threads"),
                            (["feed://127.0.0.1:1:x,patience=0"], "feed://127.0.0.1:1: ")):
            options = [word for feed in words for word in ("--feed", feed)]
            run = Run(self, "fed_ddp.py", "--steps", "3", "--diary", str(self.folder()), ranks=2, options=options)
            self.assertNotEqual(0, run.watcher.wait(60), run)
            self.assertIn(said, run.stderr())
            self.assertLessEqual(len(run.stderr().splitlines()), 2, run.stderr())
            run.assert_nothing_left()

    def test_one_that_does_not_begin_can_be_stopped(self):
        """Its server takes the connection, and says nothing. Nor does it outlive a launcher that is killed."""
        for number in (signal.SIGINT, signal.SIGKILL):
            with socket.create_server(("127.0.0.1", 0)) as mute:
                url = f"http://127.0.0.1:{mute.getsockname()[1]}/x.tar:x"
                run = Run(self, "fed_ddp.py", "--steps", "3", "--diary", str(self.folder()), ranks=2, options=["--feed", url])
                mute.settimeout(60)
                with mute.accept()[0]:
                    run.watcher.send_signal(number)
                    self.assertNotEqual(0, run.watcher.wait(30), run)
                    run.assert_nothing_left()

    def test_a_dry_run_tells_of_it(self):
        done = subprocess.run([BINARY, "run", "--dry-run", "--feed", f"{folder}/small:photos", str(ROOT / "tests/e2e/jobs/fed_ddp.py")],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn(f"lockstep feed serve: photos of {folder}/small", done.stdout)


class TwoNodes(Fed):
    def test_one_service_for_both(self):
        """The second node's batches are made on the first; its relay is killed in the middle."""
        self.diaries, feed, meeting = self.folder(), free_port(), free_port()
        data = [f"{folder}/small:small,listen=127.0.0.1:{feed}", f"feed://127.0.0.1:{feed}:small"]
        words = ["--diary", str(self.diaries), "--steps", "60", "--slow", "0:0.05", "--batch", "4"]
        runs = [Run(self, "fed_ddp.py", *words, ranks=1,
                    options=["--nnodes", "2", "--node-name", "ab"[node], "--node-rank", str(node), "--rdzv-endpoint", f"127.0.0.1:{meeting}",
                             "--feed", data[node]]) for node in range(2)]
        runs[1].wait("batches", lambda: len(self.noted(1)) >= 10)
        status = self.status(runs[1], "small")
        self.assertEqual({0: False, 1: True}, {row["rank"]: row["host"] != "" for row in status["jobs"]}, status)
        os.kill(self.services(runs[1])["small"], signal.SIGKILL)
        for run in reversed(runs):
            run.finish()
        for epoch in range(60 * 2 * 4 // SMALL):
            ids = [i for rank in range(2) for line in self.noted(rank) if line["epoch"] == epoch for i in line["ids"]]
            self.assertEqual(list(range(SMALL)), sorted(ids), epoch)
        runs[0].assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
