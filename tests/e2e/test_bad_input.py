"""Input that can't work: refused at once, by one clear message that says what, where and what to do."""
import os
import shutil
import signal
import subprocess
import unittest

from harness import BINARY, JOBS, NOBODY, PYTHON, Run, RunTest, ddp


class Refused(RunTest):
    def assert_refused(self, *texts, code=2, **options):
        """`lockstep run` ends at once; its one message holds all these texts, and nothing was started."""
        run = Run(self, options.pop("script", "no_torch.py"), **options)
        run.finish(code, timeout=20)
        for text in texts:
            self.assertIn(text, run.stderr(), run)
        self.assertEqual(1, len(run.stderr().splitlines()), run)
        return run

    def file(self, name, text="", mode=0o644):
        path = self.folder() / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def test_script_missing(self):
        self.assert_refused("does not exist", "nowhere/train.py", script="nowhere/train.py")

    def test_script_unreadable(self):
        uid = NOBODY if os.geteuid() == 0 else None
        script = self.file("train.py", mode=0)
        self.assert_refused(script, "not readable", script=script, uid=uid)

    def test_script_is_a_directory(self):
        self.assert_refused("is a directory", script=str(JOBS))

    def test_number_of_ranks(self):
        self.assert_refused("--nproc-per-node", "found 0", ranks=0)
        self.assert_refused("--nproc-per-node", '"x"', ranks="x")

    def test_unknown_option(self):
        run = Run(self, "no_torch.py", options=["--no-such-option"])
        run.finish(2, timeout=20)
        self.assertIn("--no-such-option", run.stderr(), run)

    def test_python_missing(self):
        self.assert_refused("/nowhere/python", "--python", python="/nowhere/python")
        self.assert_refused("/nowhere/python", "$PYTHON_EXEC", python=None, env={"PYTHON_EXEC": "/nowhere/python"})

    def test_variable_that_is_no_text(self):
        self.assert_refused("PYTHONPATH", "no UTF-8", env={"PYTHONPATH": os.fsdecode(b"/tmp/\xff")})

    def test_run_directory_of_another_run(self):
        run = Run(self, "no_torch.py")
        run.finish()
        self.assertEqual(2, run.start("--run", str(run.dir), *run.command).wait(20), run)
        self.assertIn("already holds a run", run.stderr(), run)

    def test_run_directory_on_a_full_disk(self):
        full = self.folder()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=777", "tmpfs", full], capture_output=True, check=False).returncode != 0:
            self.skipTest("a small tmpfs can't be mounted here")
        self.addCleanup(subprocess.run, ["umount", full], check=True)
        (full / "ballast").write_bytes(bytes(32 << 10))
        done = subprocess.run([BINARY, "run", "--no-view", "--python", PYTHON, "--run", full / "r", os.devnull], capture_output=True, text=True,
                              timeout=30, check=False)
        self.assertEqual(2, done.returncode, done)
        self.assertIn("the disk is full", done.stderr)

    def test_limits_on_files(self):
        """One line, wherever the limit is met, and before anything runs."""
        for limit, counts, why in (("-f", (1, 4, 10), "File too large"), ("-n", (14, 16, 24, 50), "raise `ulimit -n`")):
            for count in counts:
                with self.subTest(limit, count=count):
                    run = self.limited(limit, count, self.python_file("open('/dev/null')"))
                    run.finish(2, timeout=20)
                    self.assertRegex(run.stderr(), f"^lockstep: [^\n]*{why}[^\n]*\n$")

    def test_few_open_files(self):
        """Raised for what Lockstep needs, where that is allowed; scripts have the limit that was."""
        script = self.python_file("import resource\nopen('limit', 'w').write(str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))\n")
        run = self.limited("-Sn", 60, script, ranks=4)
        run.finish(timeout=30)
        self.assertEqual("60", (run.dir.parent / "limit").read_text(), run)

    def test_files_that_are_too_small_for_the_checkpoints(self):
        script = self.python_file("import torch, lockstep\nckpt = lockstep.Checkpoint({'model': torch.nn.Linear(1000, 1000)})\n"
                                  "ckpt.restore()\nckpt.step(0)\n")
        run = self.limited("-f", 200, script)
        run.finish(1, timeout=30)
        self.assertRegex(run.stderr(), "shared memory for lockstep-slot0: File too large; raise `ulimit -f`, or run without Checkpoint", run)

    def limited(self, limit, count, script, ranks=1):
        return Run(self, script, ranks=ranks, prefix=["sh", "-c", f'ulimit {limit} {count}; exec "$@"', "sh"])

    def python_file(self, text):
        path = self.folder() / "train.py"
        path.write_text(text)
        return str(path)

    def test_a_copy_of_a_run_directory(self):
        run = Run(self, "no_torch.py", options=["--allow-drill"])
        run.finish()
        copy = run.folder / "copy"
        shutil.copytree(run.dir, copy, ignore=shutil.ignore_patterns("*.sock*"))
        for words in ("run", "--resume", copy), ("drill", "kill", "--rank", "0", "--run", copy):
            done = subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=30, check=False)
            self.assertEqual((2, f"lockstep: {copy} was copied or moved: its run was started in {run.dir}; name that directory\n"),
                             (done.returncode, done.stderr))

    def test_resume_with_other_ranks(self):
        run = Run(self, "no_torch.py", "--steps", "100000", ranks=2)
        run.wait("a step", lambda: run.step() > 2)
        run.watcher.kill()
        run.watcher.wait()
        self.assertEqual(2, run.resume("--nproc-per-node", "3").wait(20), run)
        self.assertIn("2 ranks", run.stderr(), run)
        run.resume()
        run.wait("adoption", lambda: run.status()["state"] == "running")
        run.watcher.send_signal(signal.SIGTERM)
        run.finish(code=1)

    def test_inspections(self):
        self.assert_refused("no_such.toml", "No such file", options=["--inspect", "/no_such.toml"])
        unknown = self.file("inspect.toml", "[nic_dwon]\ntolerance_s = 5\n")
        self.assert_refused("inspect.toml:1:2: nic_dwon is not a known key; did you mean nic_down?", options=["--inspect", unknown])

    def test_job_file(self):
        """By the place at which a person has to look, and no second word."""
        malformed = [("name = 'x'\n[run\nnproc_per_node = 2\n", "2:5: "), ("name = 'x\n", "1:10: "), ("name = 'x'\nname = 'y'\n", "2:8: "),
                     ("name = 'x'\n[run]\nargs = [1, 2\n", "3:14: "), ("", "1:1: name is missing"),
                     ("name = 'x'\n[run]\nnproc_per_node = 'two'\n", "3:18: run.nproc_per_node must be a whole number"),
                     ("name = 'x'\n[run]\nmax_restart = 2\n", "3:1: run.max_restart is not a known key; did you mean max_restarts?"),
                     ("name = 'x'\n[layout]\ntp = 0\n", "3:6: layout.tp must be at least 1, found 0")]
        for text, said in malformed:
            with self.subTest(text):
                path = self.file("job.toml", text)
                run = self.assert_refused(options=["--job-file", path])
                self.assertTrue(run.stderr().startswith(f"lockstep: {path}:{said}"), run)
                self.assertFalse(run.dir.exists(), run)

    def test_job_file_of_another_world(self):
        path = self.file("job.toml", "name = 'x'\n[layout]\ntp = 2\ndp = 3\n")
        run = self.assert_refused(f"lockstep: {path}: its layout has 6 ranks, the run has ", options=["--job-file", path])
        self.assertFalse(run.dir.exists(), run)

    def test_job_file_missing(self):
        self.assert_refused("/nowhere/job.toml", "No such file", options=["--job-file", "/nowhere/job.toml"])


class Program(RunTest):
    """Faults of the program itself: the job stops, and does not try again what can't work."""

    def assert_verdict(self, run, *texts, starts=1):
        run.finish(code=1)
        status = run.status()
        for text in texts:
            self.assertIn(text, status["verdict"], run)
            self.assertIn(text, run.stderr(), run)
        self.assertEqual(starts, run.epoch(), run)
        self.assertEqual("finished", status["state"], run)

    def test_syntax_error(self):
        self.assert_verdict(Run(self, "syntax_error.py"), "SyntaxError", "syntax_error.py")

    def test_import_error(self):
        run = Run(self, "import_error.py")
        self.assert_verdict(run, "ModuleNotFoundError", "import_error.py:2", "a_module_that_nobody_has_written")

    def test_exception_that_repeats(self):
        run = Run(self, "ddp.py", *ddp(faults=["raise-always:1:5"]))
        self.assert_verdict(run, "ValueError", "faults.py", "step 5", starts=2)
        self.assertEqual([["1"], ["1"]], run.suspects(), run)

    def test_python_without_torch(self):
        """A virtual environment is a folder with pyvenv.cfg; this one sees no installed package."""
        venv = self.folder()
        (venv / "bin").mkdir()
        (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        python = venv / "bin/python3"
        python.symlink_to("/usr/bin/python3")
        run = Run(self, "ddp.py", *ddp(), python=str(python))
        self.assert_verdict(run, "No module named", str(python))

    def test_no_memory_for_the_checkpoints(self):
        run = Run(self, "ddp.py", *ddp(), "--width", "512", options=["--checkpoint-memory", "1MB"])
        self.assert_verdict(run, "--checkpoint-memory", "4 ranks")

    def test_restarts_used_up(self):
        faults = [f"kill:1:{5 * epoch}:forward:{epoch}" for epoch in range(1, 4)]
        run = Run(self, "ddp.py", *ddp(faults=faults), options=["--max-restarts", "2"])
        self.assert_verdict(run, "all 2 restarts", "rank 1", starts=3)


class Stopped(RunTest):
    def start(self, *faults, options=()):
        run = Run(self, "ddp.py", *ddp(1000, faults), options=options)
        run.wait_for_step(5)
        return run

    def test_by_a_signal(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            run = self.start()
            run.watcher.send_signal(number)
            run.finish(code=1, timeout=20)
            self.assertIn(number.name, run.stderr(), run)
            self.assertEqual([], run.incidents(), run)

    def test_by_command(self):
        run = self.start()
        self.assertEqual(0, run.ask("stop").returncode, run)
        run.finish(code=1, timeout=20)

    def test_workers_deaf_to_sigterm(self):
        """All of them: one alone dies of the others' end."""
        run = self.start(*(f"ignore-term:{rank}:2" for rank in range(4)), options=["--grace-s", "1"])
        run.watcher.send_signal(signal.SIGTERM)
        run.finish(code=1, timeout=20)
        self.assertIn("still running 1 s after they were asked to end, and killed now: rank 0, 1, 2, 3\n", run.stderr())


if __name__ == "__main__":
    unittest.main()
