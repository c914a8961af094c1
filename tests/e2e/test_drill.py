"""`lockstep drill` breaks a running job on purpose: what the watcher names is what was injected, and the job goes on."""
import json
import os
import pathlib
import re
import signal
import subprocess
import unittest

import freezer
from harness import BINARY, NOBODY, QUICK_LIMITS, STEPS, Run, RunTest, alive, ddp, identity, state_of

LONG = 6 * STEPS  # at 0.1 s a step: time enough to start a drill and to see what it does
ALLOWED = ("--allow-drill", *QUICK_LIMITS)


class DrillTest(RunTest):
    def start_job(self, options=ALLOWED, **more):
        run = Run(self, "ddp.py", *ddp(LONG, step_time=0.1), options=options, **more)
        run.wait_for_step(3)
        return run

    def drill(self, run, *words):
        """Carries a drill out to its end, which must be a good one. Returns what it says it did."""
        answer = run.ask("drill", "--json", *words)
        self.assertEqual(0, answer.returncode, f"{answer.stderr}\n{run}")
        return json.loads(answer.stdout)["faults"]

    def begin(self, run, *words):
        """A drill that goes on in the background, once it says that it has struck."""
        process = subprocess.Popen([BINARY, "drill", "--run", str(run.dir), *words], stdout=subprocess.PIPE, text=True,
                                   env=run.env, **identity(run.uid))
        self.addCleanup(process.wait)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        self.assertIn(" of rank ", process.stdout.readline(), run)
        return process

    def write(self, text):
        path = self.folder() / "drill.toml"
        path.write_text(text)
        return str(path)

    def assert_named(self, run, injected, symptoms):
        """One repaired incident per fault: of its rank, after it, and marked as a drill."""
        run.wait("all incidents closed", lambda: len(run.faults()) == len(injected) and
                 all(incident["closed"] for incident in run.faults()))
        self.assert_repaired(run, [fault["rank"] for fault in injected], symptoms)
        for fault, incident in zip(injected, run.faults()):
            self.assertEqual(f"{fault['fault']} of rank {fault['rank']}", incident["drill"], run)
            self.assertTrue(incident["headline"].endswith(" [drill]"), run)
            self.assertLessEqual(fault["at"], incident["opened"], run)

    def stop_job(self, run):
        self.assertEqual(0, run.ask("stop").returncode, run)
        run.finish(code=1)


class Fault(DrillTest):
    def inject(self, rank, symptoms, fault, *options):
        run = self.start_job()
        before = run.pids()
        injected = self.drill(run, fault, "--rank", str(rank), *options)
        struck = [(one["fault"], one["rank"], one["pid"]) for one in injected]
        self.assertEqual([(fault, rank, before[rank])], struck, run)
        self.assert_named(run, injected, symptoms)
        run.wait_for_step(injected[0]["step"] + 3, epoch=2)
        return run

    def test_kill(self):
        run = self.inject(2, {"crash"}, "kill")
        run.finish()
        run.assert_undisturbed_result(LONG)

    def test_stop(self):
        self.stop_job(self.inject(1, {"stopped"}, "stop"))

    def test_exit(self):
        run = self.inject(3, {"exit"}, "exit", "--code", "7")
        self.assertIn("exit code 7", run.faults()[0]["headline"], run)
        self.stop_job(run)

    def test_hang_python(self):
        run = self.inject(0, {"spinning"}, "hang-python")
        self.assertIn("_hang_in_python", run.stacks(1), run)
        self.stop_job(run)

    def test_hang_native(self):
        run = self.inject(2, {"not_entered"}, "hang-native")
        self.assertIn("_hang_in_native_code", run.stacks(1), run)
        self.stop_job(run)

    def test_freeze(self):
        if freezer.why_not(1) and freezer.why_not(2):
            self.skipTest(freezer.why_not(1))
        self.stop_job(self.inject(1, {"frozen"}, "freeze"))
        self.assertEqual([], groups("freezer"))

    def test_nan(self):
        """Nobody is named for it; the job goes back to before it, and its loss is a number again."""
        run = self.start_job()
        injected = self.drill(run, "nan", "--rank", "1")
        before = [line["loss"] for line in run.steps() if line["step"] <= injected[0]["step"]]
        self.assertTrue(all(map(is_number, before)), run)
        run.wait("a loss that is no number", lambda: any(not is_number(line["loss"]) for line in run.steps()))
        run.wait("a number again", lambda: run.steps()[-1]["epoch"] == 2 and is_number(run.steps()[-1]["loss"]))
        self.assertEqual(["nan"], [one["symptom"] for one in run.faults()], run)
        restart = [action["text"] for action in run.faults()[0]["actions"] if action["kind"] == "restart"]
        steps = re.search(r"from step (\d+), for the loss was finite up to step (\d+) only", restart[0])
        self.assertTrue(steps, restart)
        self.assertEqual(int(steps[1]) + 1, int(steps[2]), "of two in memory, the older")
        self.stop_job(run)

    def test_kill_starter(self):
        run = self.start_job()
        starter = run.starter()
        self.assertEqual([starter], [one["pid"] for one in self.drill(run, "kill-starter")], run)
        run.finish(code=3, timeout=30)
        self.assertIn("starter", run.stderr(), run)
        self.assertEqual([("node_lost", "kill-starter of rank 0")], [(one["symptom"], one["drill"]) for one in run.faults()], run)

    def test_kill_coordinator(self):
        run = self.start_job()
        watcher, workers = run.watcher, run.pids()
        self.assertEqual([watcher.pid], [one["pid"] for one in self.drill(run, "kill-coordinator")], run)
        self.assertEqual(-signal.SIGKILL, watcher.wait(10), run)
        run.resume()
        run.wait("adoption", lambda: run.pids() == workers)
        lost = [one for one in run.incidents() if one["symptom"] == "watcher_lost"]
        self.assertEqual(["kill-coordinator"], [one["drill"] for one in lost], run)
        self.stop_job(run)


class NoNumber(RunTest):
    """The parameters become NaN in the update of a step that is saved, whose loss, computed before, is still a number."""

    def repair(self, every, *options, faults=(), symptom="nan"):
        run = Run(self, "ddp.py", *ddp(step_time=0.2, faults=["nan:1:19:update", *faults]), "--every", str(every), options=(*QUICK_LIMITS, *options))
        run.finish()
        self.assertEqual([symptom], [one["symptom"] for one in run.faults()], run)
        run.assert_undisturbed_result()
        return next(action["text"] for action in run.faults()[0]["actions"] if action["kind"] == "restart")

    def test_goes_back_to_the_checkpoint_before(self):
        self.assertIn(" from step 9", self.repair(10))

    def test_goes_back_to_before_it_from_a_crash_that_comes_first(self):
        self.assertIn(" from step 9, for the loss was finite up to step 19 only", self.repair(10, faults=["kill:1:21:saved"], symptom="crash"))

    def test_goes_back_to_before_it_from_a_crash_at_the_step_that_shows_it(self):
        """Before anybody can have looked at its loss."""
        self.assertIn(" from step 9, for the loss was finite up to step 19 only", self.repair(10, faults=["kill:1:20:saved"], symptom="crash"))

    def test_that_came_while_nobody_watched(self):
        """Ranks keep for whoever comes which steps had a finite loss."""
        steps = 60
        run = Run(self, "ddp.py", *ddp(steps, step_time=0.2, faults=["nan:1:30:update"]), "--every", "25", options=QUICK_LIMITS)
        run.wait_for_step(25)
        run.watcher.kill()
        run.watcher.wait()
        run.wait_for_step(32, watched=False)
        run.resume()
        run.finish()
        self.assertEqual(["nan"], [one["symptom"] for one in run.faults()], run)
        self.assertIn(" from step 24, for the loss was finite up to step 30 only", run.faults()[0]["actions"][-1]["text"], run)
        run.assert_undisturbed_result(steps)

    def test_goes_back_to_one_on_disk_where_memory_has_only_later_ones(self):
        folder = self.folder() / "disk"
        self.assertRegex(self.repair(1, "--checkpoint-dir", str(folder), "--checkpoint-interval-s", "0.5", "--checkpoint-keep", "50"), r" from step \d+")


class Lasting(DrillTest):
    """What a fault leaves in force is undone: when its time is over, and when the drill is interrupted."""

    def slow_down(self, share, **more):
        run = self.start_job(options=["--allow-drill"], **more)
        drill = self.begin(run, "slow", "--rank", "1", "--share", str(share), "--for", "4s")
        run.wait("slow steps", lambda: slowest(run) > 0.2)
        self.assertEqual(0, drill.wait(30), run)
        run.wait("quick steps", lambda: slowest(run) < 0.15)
        self.assert_never_restarted(run)
        self.stop_job(run)

    def test_slow(self):
        self.slow_down(2)
        self.assertEqual([], groups("cpu"))

    def test_slow_without_root(self):
        self.slow_down(8, uid=NOBODY if os.geteuid() == 0 else None)

    def test_stop_for_a_moment(self):
        """Shorter than what it takes to be sure: nothing is done."""
        run = self.start_job()
        self.drill(run, "stop", "--rank", "2", "--for", "300ms")
        run.wait_for_step(run.steps()[-1]["step"] + 5)
        self.assert_never_restarted(run)
        self.stop_job(run)

    def test_interrupted(self):
        run = self.start_job(options=("--allow-drill", "--observe-only"))
        drill = self.begin(run, "stop", "--rank", "1")
        run.wait("a stopped rank", lambda: state_of(run.pids()[1]) == "T")
        drill.send_signal(signal.SIGINT)
        drill.wait(10)
        run.wait_for_step(run.steps()[-1]["step"] + 3)
        self.assertEqual(1, run.epoch(), run)
        self.stop_job(run)

    def test_full_disk(self):
        run = self.start_job()
        folder = self.folder()
        size = os.statvfs(folder)
        margin = size.f_bavail * size.f_frsize - (64 << 20)
        drill = subprocess.Popen([BINARY, "drill", "--run", str(run.dir), "fill-disk", "--dir", str(folder),
                                  "--margin", str(margin)], stdout=subprocess.PIPE, text=True, env=run.env)
        self.addCleanup(drill.stdout.close)
        self.addCleanup(drill.kill)
        self.assertIn("fill-disk", drill.stdout.readline(), run)
        self.assertGreater(space_of_unnamed_files(drill.pid, folder), 16 << 20, run)
        drill.terminate()
        self.assertEqual(0, drill.wait(10), run)
        self.assertEqual([], list(folder.iterdir()), run)
        self.stop_job(run)


class Schedule(DrillTest):
    def test_two_faults(self):
        run = self.start_job()
        first = run.step() + 20
        second = first + 40
        path = self.write(f'seed = 3\n[[fault]]\nat_step = {first}\nfault = "kill"\nrank = "random"\n'
                          f'[[fault]]\nat_step = {second}\nfault = "exit"\nrank = "random"\ncode = 5\n')
        injected = self.drill(run, "--schedule", path)
        self.assertEqual(["kill", "exit"], [fault["fault"] for fault in injected], run)
        self.assertTrue(first <= injected[0]["step"] < second <= injected[1]["step"], run)
        plan = json.loads(run.ask("drill", "--json", "--dry-run", "--schedule", path).stdout)
        self.assertEqual([fault["rank"] for fault in plan["faults"]], [fault["rank"] for fault in injected], run)
        self.assert_named(run, injected, {"crash", "exit"})
        run.finish()
        run.assert_undisturbed_result(LONG)

    def test_same_seed_same_plan(self):
        run = self.start_job()
        path = self.write("".join(f'[[fault]]\nafter_s = {i}\nfault = "kill"\nrank = "random"\n' for i in range(20)))
        plans = [run.ask("drill", "--json", "--dry-run", "--schedule", path, "--seed", seed).stdout for seed in "778"]
        self.assertEqual(plans[0], plans[1], run)
        self.assertNotEqual(plans[0], plans[2], run)
        self.assertEqual([], run.incidents(), run)
        self.stop_job(run)


class NotDone(DrillTest):
    """What a drill announced and could not do explains no later fault."""

    def drill_in_vain(self, run, why, *words):
        answer = run.ask("drill", *words)
        self.assertEqual(1, answer.returncode, f"{answer.stdout}{answer.stderr}\n{run}")
        self.assertIn(why, answer.stderr, run)

    def assert_a_real_crash(self, run, rank):
        """Of that rank now: no drill is behind it."""
        os.kill(run.pids()[rank], signal.SIGKILL)
        crash = run.wait("a crash", lambda: [one for one in run.faults() if one["symptom"] == "crash"])[0]
        self.assertNotIn("[drill]", crash["headline"], run)
        self.assertEqual({None}, {one["drill"] for one in run.incidents()}, run)

    def test_refused(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")
        run = self.start_job()
        self.drill_in_vain(run, "the network of the whole machine", "cut-link", "--rank", "0")
        self.assert_a_real_crash(run, 0)
        self.stop_job(run)

    def test_withdrawn(self):
        """A rank that is stopped takes no request. `exit`, had it struck, could explain a crash."""
        run = self.start_job(options=("--allow-drill", "--observe-only"))
        stopped = run.pids()[1]
        os.kill(stopped, signal.SIGSTOP)
        self.drill_in_vain(run, "did not take the request", "exit", "--rank", "1")
        os.kill(stopped, signal.SIGCONT)
        run.wait("its incident closed", lambda: run.faults() and run.faults()[-1]["closed"])
        self.assert_a_real_crash(run, 1)
        run.finish(code=1)


class Refused(DrillTest):
    def refuse(self, run, text, *words):
        answer = run.ask("drill", *words)
        self.assertEqual(2, answer.returncode, f"{answer.stdout}{answer.stderr}\n{run}")
        self.assertIn(text, answer.stderr, run)

    def test_a_run_that_allows_none(self):
        run = self.start_job(options=())
        for words in (["kill", "--rank", "1"], ["nan", "--rank", "1"], ["kill-coordinator"]):
            self.refuse(run, "--allow-drill", *words)
        run.wait_for_step(run.steps()[-1]["step"] + 3)
        self.assertEqual([], run.incidents(), run)
        self.stop_job(run)

    def test_from_another_pid_namespace(self):
        if subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("needs root that may make PID namespaces")
        run = self.start_job()
        answer = subprocess.run(["unshare", "--pid", "--fork", BINARY, "drill", "--run", str(run.dir), "kill", "--rank", "1"],
                                capture_output=True, text=True, timeout=30)
        self.assertEqual(2, answer.returncode, f"{answer.stdout}{answer.stderr}\n{run}")
        self.assertIn("another PID namespace", answer.stderr, run)
        self.assertEqual([], run.incidents(), run)
        self.stop_job(run)

    def test_bad_words(self):
        run = self.start_job()
        self.refuse(run, "no fault \"kil\"", "kil", "--rank", "1")
        self.refuse(run, "--random-rank", "kill")
        self.refuse(run, "0 to 3", "kill", "--rank", "4")
        self.refuse(run, "--code has no effect on kill: exit: the exit code", "kill", "--rank", "1", "--code", "3")
        for fault in "kill-coordinator", "kill-starter", "fill-disk":
            self.refuse(run, f"--rank has no effect on {fault}: ", fault, "--rank", "0")
            self.refuse(run, f"--random-rank has no effect on {fault}: ", fault, "--random-rank")
        self.refuse(run, "--schedule", "--json")
        path = self.write('[[fault]]\nfault = "exit"\nrank = 1\n')
        for words in (["--code", "3"], ["--rank", "2"], ["--random-rank"], ["--for", "1s"], ["--share", "3"], ["--dir", "/tmp"], ["--margin", "1MB"]):
            self.refuse(run, f"{words[0]} has no effect with --schedule: write ", "--schedule", path, *words)
        self.refuse(run, "--dir", "fill-disk")
        self.stop_job(run)


def is_number(loss):
    return loss == loss


def slowest(run):
    return max((rank["step_time_s"] for rank in run.status().get("ranks", [])), default=0)


def groups(controller):
    """Groups of drills that are left over."""
    roots = [pathlib.Path("/sys/fs/cgroup") / name for name in (controller, "unified", "")]
    return [str(path) for root in roots if root.exists() for path in root.glob("lockstep-drill-*")
            if not alive(int(path.name.split("-")[2]))]


def space_of_unnamed_files(pid, folder):
    """Bytes on the disk that a process holds in files without a name below `folder`."""
    total = 0
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(link)
        if target.startswith(str(folder)) and target.endswith("(deleted)"):
            total += os.stat(link).st_blocks * 512
    return total


if __name__ == "__main__":
    unittest.main()
