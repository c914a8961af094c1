"""New code and environment for a job that runs: at once, with the next restart, and taken back where it is bad."""
import json
import os
import shutil
import subprocess
import unittest

from harness import BINARY, JOBS, ROOT, Run, RunTest, ddp, free_port, kill

LOG_LINE = '"epoch": faults.epoch()}'
STEP = "            loss = job.backward()\n"
SAY_CODE = '            print("code", __import__("number").NUMBER, "in epoch", faults.epoch(), flush=True)\n'


class Versions(RunTest):
    def version(self, number, extra=""):
        """A directory with ddp.py, which logs its number and the variable TAG; `extra`: done before each step."""
        folder = self.folder() / f"v{number}"
        folder.mkdir()
        for path in [*JOBS.glob("*.py"), ROOT / "examples/fingerprint.py"]:
            shutil.copy(path, folder)
        script = (folder / "ddp.py").read_text()
        self.assertEqual((1, 1), (script.count(LOG_LINE), script.count(STEP)))
        # The number comes from another module: one that the zygote must not have kept.
        (folder / "number.py").write_text(f"NUMBER = {number}\n")
        log = f'"epoch": faults.epoch(), "code": __import__("number").NUMBER, "tag": __import__("os").environ.get("TAG")}}'
        (folder / "ddp.py").write_text(script.replace(LOG_LINE, log).replace(STEP, extra + STEP))
        return folder

    def begin(self, code, steps=100_000, options=(), slower=1000):
        run = self.start(code, steps, options, slower)
        run.wait_for_step(3)
        return run

    def start(self, code, steps=100_000, options=(), slower=1000):
        policy, log = self.folder() / "policy.toml", self.folder() / "steps.jsonl"
        policy.write_text(f"[update]\nsteps = 10\nslower = {slower}\n")
        run = Run(self, str(code / "ddp.py"), "--log", str(log), *ddp(steps, step_time=0.05), ranks=2,
                  options=["--policy", str(policy), *options])
        run.log = log
        return run

    def update(self, run, *words):
        answer = run.ask("update", *words)
        self.assertEqual(0, answer.returncode, f"{answer.stderr}\n{run}")
        return answer.stdout

    def wait_for_line(self, run, what, **fields):
        def there():
            return next((line for line in run.steps() if all(line[name] == value for name, value in fields.items())), None)

        return run.wait(what, there)

    def stage(self, run, version):
        return run.status()["versions"][version]["stage"]


class Update(Versions):
    def test_now_then_with_the_next_restart(self):
        first, second = self.version(1), self.version(2)
        run = self.begin(first)
        self.assertIn("version 1: the job is restarted with it now", self.update(run, "--code", str(second), "--now"))
        line = self.wait_for_line(run, "a step of the new code", code=2)
        self.assertEqual(2, line["epoch"], run)
        last = max(line["step"] for line in run.steps() if line["code"] == 1)
        self.assertLessEqual(last, line["step"], run)
        self.assertGreaterEqual(last + 2, line["step"], "no step was left out")
        shutil.rmtree(second)  # the run has its own copy
        run.wait("the version to be accepted", lambda: self.stage(run, 1) == "good")

        self.assertIn("with the next restart, in 24 h at the latest", self.update(run, "--env", "TAG=blue"))
        self.assertEqual(2, run.epoch(), run)
        kill(run.pids()[1], 9)
        line = self.wait_for_line(run, "a step with the variable", tag="blue")
        self.assertEqual((3, 2), (line["epoch"], line["code"]), run)
        self.assertEqual(2, run.status()["version"], run)

        update, crash = run.faults()
        self.assertEqual(("update", "crash"), (update["symptom"], crash["symptom"]), run)
        self.assertIn("version 2 (code", run.ask("why", str(crash["id"])).stdout)
        self.assertIn("in place of version 1", run.ask("why", str(crash["id"])).stdout)
        run.ask("stop")
        run.finish(code=1)

    def test_a_bad_version_is_taken_back(self):
        first = self.version(1)
        bad = self.version(2, extra='            if step % 7 == 6: raise ValueError("a bad update")\n')
        run = self.begin(first, steps=60, options=["--max-restarts", "0"])
        run.wait("the code of the beginning to be kept", (run.dir / "code/first").is_symlink)
        (first / "number.py").write_text("NUMBER = 99\n")  # edited in place: the way back leads to what ran
        self.update(run, "--code", str(bad), "--now")
        self.wait_for_line(run, "a step of the old code in epoch 3", code=1, epoch=3)
        self.assertEqual("bad", self.stage(run, 1), run)
        self.assertIn("ValueError", run.status()["versions"][1]["why"], run)
        story = json.loads(run.ask("why", "2", "--json").stdout)
        self.assertEqual("rollback", story["decisions"][0]["rung"], run)
        self.assertIn("back to version 0", "\n".join(story["done"]), run)
        run.finish()
        self.assertEqual(3, run.epoch(), run)
        self.assertEqual(59, run.steps()[-1]["step"], run)

    def test_that_no_copy_of_the_beginning_is_kept_is_told(self):
        code = self.version(1)
        with open(code / "words.json", "wb") as file:
            file.truncate(17 << 20)
        run = self.begin(code)
        told = "version 0: a way back to it takes what is there then: node "
        run.wait("that to be told", lambda: told in run.stderr())
        self.assertIn(f"{code} has more than 16 MB of code", run.stderr(), run)
        self.assertIn(told, self.update(run, "--env", "TAG=blue"), run)
        self.assertIn("more than 16 MB of code", run.status()["versions"][0]["why"], run)
        # What is copied later may be of what was edited meanwhile.
        os.truncate(code / "words.json", 0)
        (code / "number.py").write_text("NUMBER = 9\n")
        bad = self.version(2, extra='            if step > 300: raise ValueError("a bad update")\n')
        self.update(run, "--code", str(bad), "--now")
        self.wait_for_line(run, "a step of the bad code", code=2)
        run.wait("a copy in the next epoch", lambda: "it was taken in epoch 2, of what was there then" in run.status()["versions"][0]["why"])
        self.wait_for_line(run, "a step of what was there then", code=9, epoch=3)
        self.assertIn("a way back to it takes a copy: node ", run.status()["versions"][0]["why"], run)
        run.ask("stop")
        run.finish(code=1)

    def test_a_slow_version_is_taken_back(self):
        first = self.version(1)
        slow = self.version(2, extra='            __import__("time").sleep(0.4)\n')
        run = self.begin(first, options=["--max-restarts", "0"], slower=100)
        run.wait_for_step(40)  # its pace is known
        self.update(run, "--code", str(slow), "--now")
        self.wait_for_line(run, "a step of the old code in epoch 3", code=1, epoch=3)
        version = run.status()["versions"][1]
        self.assertEqual("bad", version["stage"], run)
        self.assertIn("% more, and update.slower is 100 %", version["why"], run)
        run.ask("stop")
        run.finish(code=1)

    def test_bad_input(self):
        code = self.version(1)
        run = self.begin(code)
        empty = self.folder()
        odd = os.fsencode(self.folder()) + b"/caf\xe9"
        shutil.copytree(os.fsencode(code), odd)
        for words, status, text in [
            ([], 2, "name what is new: --code DIR, --env KEY=VALUE, or both"),
            (["--code", "/nowhere"], 2, "--code /nowhere does not exist"),
            (["--code", str(code / "ddp.py")], 2, "is a file: name the directory in which the new ddp.py is"),
            (["--code", str(empty)], 2, "has no ddp.py"),
            (["--code", os.fsdecode(odd)], 2, 'caf\ufffd" is no UTF-8, in which a run keeps it; rename it'),
            (["--env", os.fsdecode(b"TAG=\xff")], 2, '--env "TAG=\ufffd" is no UTF-8'),
            (["--env", "TAG"], 2, 'needs KEY=VALUE, found "TAG"'),
            (["--env", "RANK=1"], 2, "--env RANK: Lockstep sets it for every worker"),
            (["--code", str(code), "--now", "--within", "3"], 2, "excludes"),
        ]:
            answer = run.ask("update", *words)
            self.assertEqual(status, answer.returncode, f"{words}: {answer}")
            self.assertIn(text, answer.stderr)
            self.assertTrue("excludes" in text or len(answer.stderr.splitlines()) == 1, answer.stderr)  # CLI11 points at --help, too
        self.assertEqual(1, run.epoch(), run)
        run.ask("stop")
        run.finish(code=1)
        ended = run.ask("update", "--env", "TAG=x")
        self.assertEqual(2, ended.returncode)
        self.assertIn("this run has ended: stopped by SIGTERM", ended.stderr)
        nothing = subprocess.run([BINARY, "update", "--run", str(empty), "--env", "A=1"], capture_output=True, text=True, timeout=30)
        self.assertEqual((2, 1), (nothing.returncode, len(nothing.stderr.splitlines())), nothing.stderr)


PROGRAM = "#include <stdio.h>\n#include <unistd.h>\nint main(void) { puts(\"program %d\"); fflush(stdout); for (;;) pause(); }\n"


class OfPrograms(Versions):
    def test_a_compiled_program_is_told_from_another(self):
        folders = [self.folder() for _ in range(3)]
        for number, folder in enumerate(folders):
            compiler = ["cc", "-x", "c", "-", "-o", str(folder / "program")]
            subprocess.run(compiler, input=PROGRAM % number, text=True, check=True)
        os.truncate(folders[2] / "program", 70 << 20)  # of any size
        run = Run(self, str(folders[0] / "program"), ranks=1, options=["--no-python"])
        run.wait("the first program", lambda: "program 0" in run.stdout())
        for number in (1, 2):
            self.update(run, "--code", str(folders[number]), "--now")
            run.wait("the next program", lambda: f"program {number}" in run.stdout())
        copies = [path / "program" for path in (run.dir / "code").iterdir()]
        self.assertEqual([False, False], [path.is_symlink() for path in copies], run)
        run.ask("stop")
        run.finish(code=1)

    def test_a_variable_that_was_read_before_the_fork(self):
        run = self.begin(self.version(1))
        self.update(run, "--env", "OMP_DISPLAY_ENV=TRUE", "--now")
        run.wait("libgomp to show its settings", lambda: "OPENMP DISPLAY ENVIRONMENT BEGIN" in run.stderr())
        self.assertEqual(1, run.stderr().count("the update sets OMP_DISPLAY_ENV, which is read"), run)
        self.wait_for_line(run, "a step", epoch=2)
        run.ask("stop")
        run.finish(code=1)


class OfTwoNodes(Versions):
    """Each has a copy of its own; a directory that one of them does not find as it is asked for is dropped, and the job goes on."""

    def setUp(self):
        self.first, port = self.version(1), free_port()
        where = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        self.a, self.b = (self.start(self.first, options=[*where, "--node-rank", str(index), "--node-name", "ab"[index]]) for index in range(2))
        self.a.wait_for_step(3)

    def test_all_ranks_run_the_new_code(self):
        second = self.version(2)
        self.update(self.a, "--code", str(second), "--now")
        shutil.rmtree(second)
        line = self.wait_for_line(self.a, "a step of the new code", code=2)
        self.assertEqual(2, line["epoch"], self.a)
        self.a.wait("the version to be accepted", lambda: self.stage(self.a, 1) == "good")
        copies = [sorted(path.name for path in (run.dir / "code").iterdir() if not path.is_symlink()) for run in (self.a, self.b)]
        self.assertEqual(copies[0], copies[1], self.a)
        self.assertTrue(copies[0], self.a)
        self.update(self.a, "--env", "TAG=blue", "--now")
        self.wait_for_line(self.a, "a step with the variable", tag="blue", code=2)
        self.a.ask("stop")
        self.b.finish(code=1)
        self.a.finish(code=1)


class OfAStandby(Versions):
    """It has a copy of what was there when it got its place, and the others of what was there when the run began."""

    def setUp(self):
        self.lead_dir, self.port, self.code = self.folder() / "lead", free_port(), self.version(1, SAY_CODE)
        where = ["--listen", f"127.0.0.1:{self.port}", "--run", str(self.lead_dir), "--nnodes", "2", "--standbys", "1"]
        coordinator = subprocess.Popen([BINARY, "coordinator", "--no-view", *where], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(coordinator.wait)
        self.addCleanup(coordinator.kill)

    def node(self, name, *options):
        return Run(self, str(self.code / "ddp.py"), *ddp(100_000, step_time=0.05), ranks=1,
                   options=["--coordinator", f"127.0.0.1:{self.port}", "--node-name", name, *options])

    def lead(self, *words):
        answer = subprocess.run([BINARY, *words, "--run", str(self.lead_dir)], capture_output=True, text=True, timeout=60)
        self.assertEqual(0, answer.returncode, answer.stderr)
        return answer.stdout

    def status(self):
        return json.loads(self.lead("status", "--json"))

    def test_a_mixture_never_runs(self):
        a, b = (self.node(name, "--node-rank", str(rank)) for rank, name in enumerate("ab"))
        for run in (a, b):
            run.wait("a copy of the beginning", (run.dir / "code/first").is_symlink)
        s = self.node("s")
        a.wait("the standby", lambda: self.status()["standbys"] == ["s"])
        (self.code / "number.py").write_text("NUMBER = 9\n")  # the next version is prepared in place
        for pid in b.processes():
            kill(pid, 9)
        s.wait("its own copy", (s.dir / "code/first").is_symlink)
        self.lead("update", "--env", "TAG=blue", "--now")
        for run in (a, s):
            run.wait("a step of epoch 3", lambda: "code 9 in epoch 3" in run.stdout() or "code 1 in epoch 3" in run.stdout())
        self.assertEqual([False, False], ["code 1 in epoch 3" in run.stdout() for run in (a, s)], f"{a}{s}")
        a.wait("why there is no way back", lambda: "nodes 0 and 1 have different copies of it" in self.status()["versions"][0]["why"])
        self.lead("stop")
        for run in (a, s):
            run.finish(code=1)


if __name__ == "__main__":
    unittest.main()
