"""What passes in real gloo jobs that know nothing of it: liblockstep-gloo.so keeps it, `lockstep diagnose` names who or what slows or holds the job."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from harness import BINARY, JOBS, POLL_S, PYTHON, ROOT, Run, RunTest, free_port, inherited
from slow_links import DETOUR, Shape, SlowLinks

GLOO = str(pathlib.Path(BINARY).parent.parent / "lib/liblockstep-gloo.so")
TRIXIE = ROOT / "tests/e2e/trixie"
STEPS = ("--steps", "40", "--pause", "0.05")


class Attached:
    """Ranks started by hand, as a user would who did not launch the job with Lockstep: by environment variables only."""

    def __init__(self, test, *args, ranks=4, shapes=None, trails=None, python=PYTHON, preload=(GLOO,), wrapper=()):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-e2e-", dir="/tmp"))
        self.trails = trails or self.folder / "trails"
        test.addCleanup(self.clear_away)
        self.links = SlowLinks(shapes or {}) if shapes is not None else None
        if self.links:
            self.links.__enter__()
            preload = (*preload, DETOUR)
        port, self.processes = free_port(), []
        for rank in range(ranks):
            env = {**inherited(), "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                   "LD_PRELOAD": ":".join(preload), "LOCKSTEP_TRAILS": str(self.trails), "USE_LIBUV": "0", "OMP_NUM_THREADS": "1",
                   **(self.links.environment() if self.links else {})}
            with open(self.folder / f"stderr.{rank}", "wb") as err:
                self.processes.append(subprocess.Popen([*wrapper, python, str(JOBS / "rings.py"), *args], env=env, stderr=err,
                                                       stdin=subprocess.DEVNULL, cwd=self.folder))

    def clear_away(self):
        for process in self.processes:
            process.kill()
            process.wait()
        if self.links:
            self.links.__exit__()
        shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self):
        return [process.wait(timeout=120) for process in self.processes]

    def stderr(self, rank):
        return (self.folder / f"stderr.{rank}").read_text(errors="replace")

    def stderrs(self):
        return "".join(self.stderr(rank) for rank in range(len(self.processes)))

    def wait_until(self, holds, seconds=60):
        end = time.monotonic() + seconds
        while not (value := holds()):
            if time.monotonic() > end:
                raise AssertionError("waited in vain; " + self.stderrs())
            time.sleep(POLL_S)
        return value

    def diagnose(self):
        return diagnose(self.trails)


def diagnose(path):
    done = subprocess.run([BINARY, "diagnose", str(path), "--json"], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


def named(verdict):
    """The suspects of a verdict, and what is as good."""
    return verdict["suspects"] + verdict["ambiguous_with"]


def told(incident):
    """What its findings say, one line each, the leading one first."""
    return [incident["headline"], *incident["joined"]]


class CollectTest(RunTest):
    maxDiff = None

    def finished(self, *args, **options):
        job = Attached(self, *STEPS, *args, **options)
        self.assertEqual([0] * len(job.processes), job.finish(), job.stderrs())
        return job.diagnose()


class Slowness(CollectTest):
    def test_a_healthy_job(self):
        report = self.finished("--pairs", "--transfers", "--exchange")
        self.assertTrue(report["healthy"], report)
        self.assertEqual([[], 4, [], {}], [report[key] for key in ("no_report", "reported", "damaged", "counters")])

    def test_a_slow_rank(self):
        (verdict,) = self.finished("--slow", "2")["verdicts"]
        self.assertEqual(("non_communication_slow", True, [{"rank": 2}], []),
                         tuple(verdict[key] for key in ("syndrome", "certain", "suspects", "ambiguous_with")))

    def test_a_slow_rank_of_a_job_with_ops_in_which_nothing_is_sent(self):
        (verdict,) = self.finished("--empty", "--slow", "2")["verdicts"]
        self.assertEqual(("non_communication_slow", True, [{"rank": 2}]), (verdict["syndrome"], verdict["certain"], named(verdict)))

    def test_a_late_receiver(self):
        """Whose sender waits for it, and is not by itself meanwhile."""
        (verdict,) = self.finished("--transfers", "--late", "0.02")["verdicts"]
        self.assertEqual(("non_communication_slow", True, [{"rank": 1}], []),
                         tuple(verdict[key] for key in ("syndrome", "certain", "suspects", "ambiguous_with")))

    def test_a_delayed_link_in_one_ring(self):
        """Which can't be told from its ends."""
        (verdict,) = self.finished(shapes={(2, 1): Shape(delay_s=0.02)})["verdicts"]
        self.assertEqual(("communication_slow", False), (verdict["syndrome"], verdict["certain"]))
        self.assertCountEqual([{"link": "1<->2"}, {"rank": 1}, {"rank": 2}], named(verdict))
        self.assertIn("another rank", verdict["probe"])

    def test_a_delayed_link_that_other_pairs_tell_apart(self):
        (verdict,) = self.finished("--pairs", shapes={(2, 1): Shape(delay_s=0.02)})["verdicts"]
        self.assertEqual(("communication_slow", True, [{"link": "1<->2"}]), (verdict["syndrome"], verdict["certain"], named(verdict)))

    def test_a_delayed_link_that_only_sends_use(self):
        (verdict,) = self.finished("--exchange", shapes={(0, 2): Shape(delay_s=0.02)})["verdicts"]
        self.assertEqual(("communication_slow", [{"link": "0<->2"}]), (verdict["syndrome"], named(verdict)))

    def test_a_slow_sender_and_a_slow_receiver(self):
        for sends in (True, False):
            shapes = {(2, other) if sends else (other, 2): Shape(delay_s=0.02) for other in (0, 1, 3)}
            with self.subTest(sends=sends):
                (verdict,) = self.finished("--pairs", shapes=shapes)["verdicts"]
                self.assertEqual(("communication_slow", [{"rank": 2}]), (verdict["syndrome"], named(verdict)))

    def test_a_throttled_link(self):
        (verdict,) = self.finished("--pairs", shapes={(3, 0): Shape(bytes_per_s=20e6)})["verdicts"]
        self.assertEqual(("communication_slow", [{"link": "0<->3"}]), (verdict["syndrome"], named(verdict)))

    @unittest.skipUnless((ROOT / ".cache/trixie/complete").exists(), "Debian 13 is not there: tests/e2e/trixie/make")
    def test_torch_2(self):
        """Whose gloo makes its connections in another way."""
        (verdict,) = self.finished("--pairs", "--slow", "3", python=str(TRIXIE / "python"))["verdicts"]
        self.assertEqual(("non_communication_slow", [{"rank": 3}]), (verdict["syndrome"], named(verdict)))


class Hangs(CollectTest):
    def test_a_stopped_rank(self):
        job = Attached(self, "--pairs", "--stop", "2:7")
        report = job.wait_until(lambda: job.trails.exists() and any(job.trails.iterdir()) and (now := job.diagnose())["verdicts"] and now)
        (verdict,) = report["verdicts"]
        self.assertEqual(("non_communication_hang", True, [{"rank": 2}]), (verdict["syndrome"], verdict["certain"], named(verdict)))
        job.processes[2].send_signal(signal.SIGCONT)
        self.assertEqual([0] * 4, job.finish())
        self.assertTrue(job.diagnose()["healthy"])

    def test_a_stopped_rank_of_a_job_with_ops_in_which_nothing_is_sent(self):
        job = Attached(self, "--empty", "--stop", "2:7")
        report = job.wait_until(lambda: job.trails.exists() and any(job.trails.iterdir()) and (now := job.diagnose())["verdicts"] and now)
        (verdict,) = report["verdicts"]
        self.assertEqual(("non_communication_hang", True, [{"rank": 2}]), (verdict["syndrome"], verdict["certain"], named(verdict)))

    def test_what_killed_processes_leave(self):
        """Who was behind is told; that it was a hang is not certain."""
        job = Attached(self, "--stop", "1:5")
        job.wait_until(lambda: job.trails.exists() and any(job.trails.iterdir()) and job.diagnose()["verdicts"])
        for process in job.processes:
            process.kill()
            process.wait()
        (verdict,) = job.diagnose()["verdicts"]
        self.assertEqual((False, [{"rank": 1}]), (verdict["certain"], named(verdict)))


class Harmless(CollectTest):
    def test_no_folder_for_trails(self):
        job = Attached(self, "--steps", "3", trails="/dev/null/trails")
        self.assertEqual([0] * 4, job.finish())
        self.assertIn("tells nothing of its communication: /dev/null/trails/", job.stderr(0))
        self.assertEqual(1, job.stderr(0).count("lockstep:"))

    def test_a_full_disk(self):
        folder = tempfile.mkdtemp(prefix="lockstep-e2e-", dir="/tmp")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
        self.addCleanup(lambda: (subprocess.run(["umount", folder], check=True), os.rmdir(folder)))
        job = Attached(self, "--steps", "3", trails=folder)
        self.assertEqual([0] * 4, job.finish())
        self.assertIn("No space left on device", "".join(job.stderr(rank) for rank in range(4)))
        self.assertEqual(1, diagnose(folder)["reported"])  # the one that had room

    def test_children_have_it_no_more(self):
        file = tempfile.NamedTemporaryFile()
        self.addCleanup(file.close)
        job = Attached(self, "--steps", "2", "--child", file.name, wrapper=("/bin/sh", "-c", 'exec "$0" "$@"'))
        self.assertEqual([0] * 4, job.finish())
        self.assertEqual("\n", pathlib.Path(file.name).read_text())
        self.assertEqual(4, job.diagnose()["reported"])

    def test_ranks_that_a_launcher_starts(self):
        """Which is of Python itself, makes no communicator, and has a RANK, of its node."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-e2e-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, folder)
        launch = f"""import sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
if __name__ == "__main__":
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_endpoint="127.0.0.1:{free_port()}", rdzv_backend="static", run_id="e2e",
                          rdzv_configs={{"rank": 0, "timeout": 60}}, monitor_interval=0.1)
    elastic_launch(config, sys.executable)({str(JOBS / "rings.py")!r}, *sys.argv[1:])
"""
        spawn = f"""import os, runpy, torch.multiprocessing
def rank(index):
    os.environ["RANK"] = str(index)
    runpy.run_path({str(JOBS / "rings.py")!r}, run_name="__main__")
if __name__ == "__main__":
    torch.multiprocessing.spawn(rank, nprocs=2)
"""
        for name, script, env in (("launch", launch, {"RANK": "0", "WORLD_SIZE": "1"}),
                                  ("spawn", spawn, {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})):
            with self.subTest(name):
                (folder / f"{name}.py").write_text(script)
                trails, child = folder / name, folder / f"{name}.child"
                done = subprocess.run([PYTHON, folder / f"{name}.py", "--steps", "2", "--child", str(child)], cwd=folder, capture_output=True, text=True,
                                      env={**inherited(), "LD_PRELOAD": GLOO, "LOCKSTEP_TRAILS": str(trails), "OMP_NUM_THREADS": "1", **env},
                                      timeout=120, check=False)
                self.assertEqual(0, done.returncode, done.stderr)
                self.assertEqual(2, diagnose(trails)["reported"])
                self.assertEqual("\n", child.read_text())

    def test_another_gloo_of_its_own(self):
        """A module that has one linked in calls its own, whatever is preloaded, and whether or not torch is there."""
        libraries = [str(pathlib.Path(DETOUR).with_name(f"liblockstep-test-own_gloo{version}.so")) for version in ("", "_2")]
        calls = f"import ctypes; print([ctypes.CDLL(path).passes_a_barrier() for path in {libraries} * 2])"
        for imports in ("", "import torch; "):
            done = subprocess.run([PYTHON, "-c", imports + calls],
                                  env={**inherited(), "LD_PRELOAD": GLOO}, capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual((0, "[42, 43, 42, 43]\n"), (done.returncode, done.stdout), done.stderr)

    def test_damaged_trails(self):
        job = Attached(self, *STEPS, "--slow", "0")
        self.assertEqual([0] * 4, job.finish())
        first, second, *_ = sorted(job.trails.iterdir())
        os.truncate(first, 5000)
        second.write_bytes(os.urandom(second.stat().st_size))
        report = job.diagnose()
        self.assertEqual(2, len(report["damaged"]), report)
        self.assertEqual(2, report["reported"])
        self.assertEqual(2, len(report["no_report"]))


class Recorded(CollectTest):
    """`lockstep record` beside a job: its file says what the job's trails said, and what they have forgotten since."""

    def record(self, job, *words):
        job.wait_until(lambda: job.trails.exists() and len(list(job.trails.iterdir())) == len(job.processes))
        path = job.folder / "job.records"
        recorder = subprocess.Popen([BINARY, "record", str(job.trails), "--out", str(path), "--every", "0.2", "--patience", "1", "--json", *words],
                                    stdout=subprocess.PIPE, text=True)
        self.addCleanup(recorder.stdout.close)
        self.addCleanup(recorder.wait)
        self.addCleanup(recorder.kill)
        return path, recorder

    def test_a_job_to_its_end(self):
        job = Attached(self, *STEPS, "--slow", "2")
        path, recorder = self.record(job)
        self.assertEqual([0] * 4, job.finish())
        report = json.loads(recorder.communicate(timeout=30)[0])
        self.assertEqual((0, 4, 0, []), (recorder.returncode, report["trails"], report["overwritten"], report["damaged"]), report)
        shutil.rmtree(job.trails)
        (verdict,) = diagnose(path)["verdicts"]
        self.assertEqual(("non_communication_slow", [{"rank": 2}]), (verdict["syndrome"], named(verdict)))

    def test_a_hang_and_a_recorder_that_was_killed(self):
        job = Attached(self, "--stop", "1:5")
        path, recorder = self.record(job)
        (verdict,) = job.wait_until(lambda: path.exists() and path.stat().st_size > 64 and diagnose(path)["verdicts"])
        self.assertEqual(("non_communication_hang", True, [{"rank": 1}]), (verdict["syndrome"], verdict["certain"], named(verdict)))
        recorder.kill()
        recorder.wait()
        path.write_bytes(path.read_bytes()[:-30])  # as a disk leaves it that lost power
        self.assertEqual([{"rank": 1}], named(diagnose(path)["verdicts"][0]))

    def test_bad_input(self):
        for words, error in ((("/dev/null/none", "--out", "/tmp/x.records"), "expected a directory with trails"),
                             (("/tmp", "--out", "/etc/passwd"), "name another one"), (("/tmp", "--out", "/dev/null/x"), "can't be written")):
            done = subprocess.run([BINARY, "record", *words], capture_output=True, text=True, timeout=30)
            self.assertEqual((2, 1), (done.returncode, done.stderr.count("\n")), done.stderr)
            self.assertIn(error, done.stderr)


class UnderLockstep(CollectTest):
    def test_run_preloads_it(self):
        for method in ("zygote", "exec"):
            with self.subTest(method):
                run = Run(self, "rings.py", *STEPS, "--slow", "1", options=["--start-method", method])
                run.finish()
                (verdict,) = diagnose(run.dir)["verdicts"]
                self.assertEqual(("non_communication_slow", [{"rank": 1}]), (verdict["syndrome"], named(verdict)), run)

    def test_a_slow_rank_is_named_while_the_job_runs(self):
        run = Run(self, "rings.py", "--steps", "400", "--slow", "3")
        incident, = run.wait("a name", run.incidents)
        self.assertEqual(("non_communication_slow", True, [{"kind": "rank", "name": "3"}]),
                         tuple(incident[key] for key in ("symptom", "certain", "suspects")), run)
        self.assertIn("the job goes on", incident["actions"][0]["text"])
        run.finish()
        self.assertEqual([], run.faults(), run)

    def test_a_delayed_link_is_named_while_the_job_runs(self):
        with SlowLinks({(2, 1): Shape(delay_s=0.02)}) as links:
            run = Run(self, "rings.py", "--steps", "100", "--pairs", env={"LD_PRELOAD": DETOUR, **links.environment()})
            incident, = run.wait("a name", run.incidents)
            self.assertEqual(("communication_slow", True, [{"kind": "link", "name": "1<->2"}]),
                             tuple(incident[key] for key in ("symptom", "certain", "suspects")), run)
            run.finish()
            self.assertEqual([], run.faults(), run)

    def test_a_dead_link_is_named_while_the_job_hangs(self):
        """Nobody's process shows it, and no library tells before half an hour."""
        with SlowLinks({(2, 1): Shape(bytes=20e6)}) as links:
            run = Run(self, "rings.py", "--steps", "100", env={"LD_PRELOAD": DETOUR, **links.environment()})
            incident, = run.wait("a name", run.incidents)
            names = {one["name"] for one in incident["suspects"] + incident["ambiguous_with"]}
            self.assertEqual(("communication_hang", False, {"1", "2", "2->1"}), (incident["symptom"], incident["certain"], names), run)
            self.assertEqual(0, run.ask("stop").returncode, run)
            run.finish(code=1)

    def test_the_demo_job(self):
        """In its one ring a slow link can't be told from its ends. Who else uses the cores may make a rank slow too, which is then told first."""
        script = str(ROOT / "examples/train_gpt.py")
        with SlowLinks({(2, 1): Shape(delay_s=0.1)}) as links:
            run = Run(self, script, "--steps", "40", env={"LD_PRELOAD": DETOUR, **links.environment()})
            line, = run.wait("the link's name", lambda: [line for one in run.incidents() for line in told(one) if "1<->2" in line])
            self.assertRegex(line, r"^link 1<->2 is slow .* \(or it is rank 2 or rank 1\) \(not certain\)$")
            run.finish()

    def test_a_slow_rank_of_another_node(self):
        port = free_port()
        a, b = (Run(self, "rings.py", "--steps", "400", "--slow", "2", ranks=2,
                    options=["--nnodes", "2", "--node-name", "ab"[node], "--node-rank", str(node), "--rdzv-endpoint", f"127.0.0.1:{port}"])
                for node in range(2))
        incident, = a.wait("a name", a.incidents)
        self.assertEqual(("non_communication_slow", [{"kind": "rank", "name": "2"}]), (incident["symptom"], incident["suspects"]), a)
        b.finish()
        a.finish()

    def test_no_preload(self):
        run = Run(self, "rings.py", "--steps", "3", options=["--no-preload"])
        run.finish()
        self.assertFalse((run.dir / "trails").exists(), run)


if __name__ == "__main__":
    unittest.main()
