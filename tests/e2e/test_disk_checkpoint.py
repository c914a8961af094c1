"""Checkpoints on disk: a job that is wholly gone goes on from the newest one, bit for bit; and no disk, however bad, stops a job."""
import errno
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import unittest

import torch

import safetensors_reader
import test_upload
from harness import BINARY, JOBS, NOBODY, PYTHON, ROOT, STEPS, Run, RunTest, ddp, kill

ROOM = 24 << 20  # of the small disk; a checkpoint of the job takes much less


class DiskCheckpoint(RunTest):
    def setUp(self):
        self.directory = self.folder() / "checkpoints"

    def train(self, *args, interval=0.2, options=(), ranks=4, **more):
        disk = ("--checkpoint-dir", str(self.directory), "--checkpoint-interval-s", str(interval))
        return Run(self, "ddp.py", *args, options=(*disk, *options), ranks=ranks, **more)

    def checkpoints(self):
        """Their steps, newest first, as `lockstep checkpoint list` has them."""
        return [one["step"] for one in self.ask("list")[1]["checkpoints"]]

    def ask(self, what):
        answer = subprocess.run([BINARY, "checkpoint", what, str(self.directory), "--json"], capture_output=True, text=True, timeout=60)
        return answer.returncode, json.loads(answer.stdout)

    def disk_status(self, run):
        return run.status().get("checkpoint", {}).get("disk") or {}

    def kill_wholly(self, run):
        """The machine goes down: watcher, starter and workers at once."""
        for pid in run.processes():
            kill(pid, signal.SIGKILL)
        run.watcher.wait(10)

    def first_step(self, run):
        return min(line["step"] for line in run.steps())


class Resume(DiskCheckpoint):
    def test_killed_wholly_and_started_anew(self):
        run = self.train(*ddp())
        run.wait("a checkpoint on disk", lambda: (self.disk_status(run).get("step") or -1) >= 8)
        self.kill_wholly(run)
        newest = self.checkpoints()[0]
        self.assertEqual((0, True), (self.ask("verify")[0], self.ask("verify")[1]["valid"]))
        again = self.train(*ddp(), interval=600)  # a flush under way at the end would keep the last steps out of memory
        again.finish()
        self.assertEqual(newest + 1, self.first_step(again), again)
        self.assertIn(f"going on from {self.directory}/step_{newest:012}", again.stderr(), again)
        self.assertEqual([], again.faults(), again)
        again.assert_undisturbed_result()
        self.assertEqual(STEPS - 1, self.checkpoints()[0], again)
        self.assertEqual(2, len(self.checkpoints()), again)

    def test_the_manifest_has_the_layout(self):
        job = self.folder() / "job.toml"
        job.write_text("name = 'j'\n[layout]\ndp = 2\ntp = 2\n")
        self.train(*ddp(), options=["--job-file", str(job)]).finish()
        manifest, *_ = self.directory.glob("step_*/manifest.json")
        layout = json.loads(manifest.read_text())["layout"]
        self.assertEqual((2, 2, 1), (layout["dp"], layout["tp"], layout["pp"]))
        self.assertEqual(0, self.ask("verify")[0])

    def test_sigterm_flushes_and_a_second_run_goes_on(self):
        run = self.train(*ddp(), interval=600)
        run.wait_for_step(8)
        run.watcher.terminate()
        run.finish(1)
        last, = self.checkpoints()
        self.assertGreaterEqual(last, 7, run)
        again = self.train(*ddp(), interval=600)
        again.finish()
        self.assertEqual(last + 1, self.first_step(again), again)
        again.assert_undisturbed_result()

    def test_a_restart_in_place_goes_on_from_memory(self):
        run = self.train(*ddp(faults=["kill:2:9"]))
        run.finish()
        self.assert_repaired(run, [2], {"crash"})
        run.assert_undisturbed_result()

    def test_replicas_go_on_in_a_world_of_another_size(self):
        self.train(*ddp(steps=10), "--replicas", ranks=2, interval=600).finish()
        for ranks, steps in ((3, 16), (1, 22)):
            newest = self.checkpoints()[0]
            again = self.train(*ddp(steps=steps), "--replicas", ranks=ranks, interval=600)
            again.finish()
            self.assertEqual(newest + 1, self.first_step(again), again)

    def test_falls_back_past_a_damaged_one_and_names_it(self):
        self.train(*ddp(steps=12)).finish()
        newest, older = self.checkpoints()
        path = next(self.directory.glob(f"step_{newest:012}_*")) / "rank_00001.safetensors"
        data = bytearray(path.read_bytes())
        data[-100] ^= 4
        path.write_bytes(data)
        self.assertEqual(1, self.ask("verify")[0])
        again = self.train(*ddp(), interval=600)  # one more, at its end
        again.finish()
        self.assertEqual(older + 1, self.first_step(again), again)
        for step in (older, newest):
            self.assertEqual(1, len(list(self.directory.glob(f"step_{step:012}_*"))), "one that is damaged does not push out a good one")
        self.assertRegex(again.stderr(), r"not loaded: .*rank_00001\.safetensors has CRC 0x\w+, expected 0x\w+")
        again.assert_undisturbed_result()

    def test_what_can_t_be_read_for_now_is_said_at_once_and_waited_for(self):
        self.train(*ddp(steps=12)).finish()
        newest = self.checkpoints()[0]
        manifest = next(self.directory.glob(f"step_{newest:012}_*")) / "manifest.json"
        kept = manifest.rename(manifest.with_name("kept"))
        manifest.symlink_to(manifest.name)  # to itself
        again = self.train(*ddp(), interval=600)
        again.wait("the reason", lambda: "not loaded yet, and tried again for 45 s: " in again.stderr())
        self.assertIn("Too many levels of symbolic links", again.stderr(), again)
        manifest.unlink()
        kept.rename(manifest)
        again.finish()
        self.assertEqual(newest + 1, self.first_step(again), again)

    def test_nothing_whole_is_left(self):
        self.train(*ddp(steps=12)).finish()
        for path in self.directory.glob("step_*/rank_00000.safetensors"):
            path.unlink()
        again = self.train(*ddp())
        again.finish(1)
        self.assertIn("no checkpoint on disk can be loaded", again.stderr(), again)
        self.assertEqual(2, len(list(self.directory.glob("step_*"))), "a person may want them")


class BadDirectory(DiskCheckpoint):
    def assert_refused(self, run, text):
        self.assertEqual(2, run.watcher.wait(30), run)
        self.assertIn(text, run.stderr(), run)

    def test_another_world_size(self):
        self.train(*ddp(steps=8), interval=600).finish()
        run = self.train(*ddp(), ranks=2)
        self.assert_refused(run, "was written by 4 ranks, this job has 2: start it with 4 ranks, or name another --checkpoint-dir")

    def test_two_runs_at_once(self):
        run = self.train(*ddp())
        run.wait_for_step(2)
        self.assert_refused(self.train(*ddp()), f"is held by process {run.watcher.pid}")
        run.finish()

    def test_garbage_is_left_alone(self):
        (self.directory / "step_000000000007_epoch_1").mkdir(parents=True)
        (self.directory / ".incoming_step_000000000009_epoch_1").mkdir()
        (self.directory / ".incoming_step_000000000009_epoch_1" / "rank_00000.safetensors").write_text("half")
        (self.directory / "notes.txt").write_text("mine")
        (self.directory / "step_x").mkdir()
        self.train(*ddp(), interval=600).finish(1)  # the damaged checkpoint may be all that there is: a person decides
        shutil.rmtree(self.directory / "step_000000000007_epoch_1")
        run = self.train(*ddp(), interval=600)
        run.finish()
        self.assertEqual(0, self.first_step(run), run)
        self.assertEqual({"notes.txt", "step_x", ".lock", f"step_{STEPS - 1:012}_epoch_1"}, set(os.listdir(self.directory)))


class ReadOnly(DiskCheckpoint):
    """For an ordinary user: root may write everywhere."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("becoming another user needs root")
        self.directory.mkdir()
        os.chown(self.directory, NOBODY, NOBODY)

    def shut(self):
        os.chown(self.directory, 0, 0)
        self.directory.chmod(0o555)

    def test_while_the_job_runs(self):
        run = self.train(*ddp(), uid=NOBODY)
        run.wait("a checkpoint on disk", lambda: self.disk_status(run).get("flushes", 0) >= 1)
        self.shut()
        run.wait("a flush that fails", lambda: self.disk_status(run).get("failures", 0) >= 1)
        run.finish()
        self.assertIn("Permission denied; training goes on", run.stderr(), run)
        self.assertEqual(0, self.ask("verify")[0], "the last good one")
        run.assert_undisturbed_result()

    def test_a_leftover_that_can_t_be_removed(self):
        left = self.directory / ".outgoing_step_000000000002_epoch_1"
        left.mkdir()
        (left / "manifest.json").write_text("root's")
        run = self.train(*ddp(), uid=NOBODY, interval=600)
        run.finish()
        self.assertEqual(1, run.stderr().count(f"old checkpoints stay on disk: removing {left}/manifest.json: Permission denied"), run)
        self.assertEqual([STEPS - 1], self.checkpoints())

    def test_from_the_start(self):
        self.shut()
        run = self.train(*ddp(), uid=NOBODY)
        self.assertEqual(2, run.watcher.wait(30), run)
        self.assertIn(f"{self.directory}/.lock: Permission denied", run.stderr(), run)


class Formats(DiskCheckpoint):
    """What others read and write: safetensors as the format says, torch.save, and back into a job."""

    def setUp(self):
        super().setUp()
        sys.path.insert(0, str(JOBS))
        self.addCleanup(sys.path.remove, str(JOBS))
        self.out = self.folder() / "out.json"
        self.saved = self.folder() / "saved.pt"

    def run_job(self):
        disk = ("--checkpoint-dir", str(self.directory))
        Run(self, "kinds.py", str(self.out), options=disk, ranks=1).finish()
        return json.loads(self.out.read_text())

    def convert(self, verb, *words):
        command = [BINARY, "checkpoint", verb, str(self.directory), *words, "--python", PYTHON]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def assert_equal(self, expected, found, name):
        self.assertEqual(expected.dtype, found.dtype, name)
        self.assertTrue(torch.equal(expected, found), name)

    def test_safetensors(self):
        import kinds

        self.run_job()
        path, = self.directory.glob("step_*/rank_00000.safetensors")
        found, metadata = safetensors_reader.read(path)
        real = json.loads(metadata["lockstep.torch"])
        expected = {f"kinds.{name}": tensor for name, tensor in kinds.tensors().items()}
        self.assertEqual({*expected, "counter"}, found.keys())
        self.assertEqual({"kinds.channels_last", "kinds.complex128", "kinds.transposed"}, real.keys())
        self.assertEqual(kinds.STEPS, int(found["counter"]))
        for name in expected.keys() - real.keys():
            self.assert_equal(expected[name], found[name], name)
        self.assert_equal(expected["kinds.channels_last"], found["kinds.channels_last"].permute(0, 3, 1, 2), "as its memory lies")
        self.assert_equal(expected["kinds.transposed"], found["kinds.transposed"].t(), "as its memory lies")
        self.assertEqual(expected["kinds.complex128"].numpy().tobytes(), found["kinds.complex128"].numpy().tobytes())

    def test_torch_and_back(self):
        import kinds

        self.run_job()
        answer = self.convert("export", "--to", "torch", str(self.saved))
        self.assertEqual((0, ""), (answer.returncode, answer.stderr))
        saved = torch.load(self.saved)
        self.assertEqual((kinds.STEPS - 1, 1), (saved["step"], saved["world_size"]))
        tensors = saved["ranks"]["0"]["tensors"]
        for name, tensor in kinds.tensors().items():
            self.assert_equal(tensor, tensors[f"kinds.{name}"], name)
        tensors["counter"].fill_(40)
        torch.save(saved, self.saved)
        answer = self.convert("import", "--from", "torch", str(self.saved))
        self.assertEqual(0, answer.returncode, answer.stderr)
        self.assertEqual((0, 2), (self.ask("verify")[0], len(self.checkpoints())))
        self.assertEqual({"start": kinds.STEPS, "began": 40, "ended": 40 + kinds.STEPS}, self.run_job())

    def converter(self):
        sys.path.insert(0, str(ROOT / "python"))
        self.addCleanup(sys.path.remove, str(ROOT / "python"))
        from lockstep import _convert

        return _convert

    def test_an_export_holds_one_piece_in_memory_and_one_file_open(self):
        def kilobytes(name):
            with open("/proc/self/status") as status:
                return next(int(line.split()[1]) for line in status if line.startswith(name))

        convert = self.converter()
        contents = [64 << 20, 64 << 20, *(b"rank %d" % rank for rank in range(2, 40))]
        folder = test_upload.make_checkpoint(self.directory, 1, files=contents)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 16, limits[1]))
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        before = kilobytes("VmRSS:")
        convert.export(folder, self.saved)
        self.assertLess(kilobytes("VmHWM:") - before, 32 << 10)
        found = torch.load(self.saved)["ranks"]
        self.assertEqual(contents[2:], [bytes(found[str(rank)]["tensors"]["content"]) for rank in range(2, 40)])
        self.assertEqual([64 << 20] * 2, [int((found[rank]["tensors"]["content"] == 0).sum()) for rank in "01"])

    def test_what_an_export_can_not_read_has_a_name(self):
        convert = self.converter()
        folder = test_upload.make_checkpoint(self.directory, 1)
        path = folder / "rank_00001.safetensors"
        os.truncate(path, path.stat().st_size - 3)
        with self.assertRaisesRegex(convert.ConvertError, f"^{path} was cut short after it had been verified: 3 bytes of a tensor are missing$"):
            convert.export(folder, self.saved)
        self.assertEqual([], list(self.saved.parent.iterdir()))
        with self.assertRaisesRegex(convert.ConvertError, "^/proc/self/mem: Input/output error$"):
            list(convert.read_bytes("/proc/self/mem", 0, 8, memoryview(bytearray(8))))

    def test_what_a_manifest_says_of_other_worlds_comes_back(self):
        self.run_job()
        path, = self.directory.glob("step_*/manifest.json")
        manifest = json.loads(path.read_text())
        del manifest["crc32c"]
        manifest["layout"] = {"tp": 1, "dp": 1, "order": "tp-dp é"}
        manifest["files"][0].update(replica=True, cut=True)
        path.write_text(json.dumps(manifest))
        for verb in (("export", "--to"), ("import", "--from")):
            answer = self.convert(*verb, "torch", str(self.saved))
            self.assertEqual(0, answer.returncode, answer.stderr)
        path, = self.directory.glob("step_*_epoch_2/manifest.json")
        found = json.loads(path.read_text())
        self.assertEqual(manifest["layout"], found["layout"])
        self.assertEqual(0, self.ask("verify")[0])
        path.write_text(path.read_text().replace(str(found["files"][0]["slot_crc32c"]), "1"))
        self.assertIn("manifest.json: it has CRC", self.ask("verify")[1]["checkpoints"][0]["why"])
        self.assertEqual((True, True, 32), (found["files"][0]["replica"], found["files"][0]["cut"], len(found["files"][0]["tensors"])))

    def test_an_import_without_room_says_where_and_leaves_nothing(self):
        self.run_job()
        self.convert("export", "--to", "torch", str(self.saved))
        limited = ["prlimit", "--fsize=4096", BINARY, "checkpoint", "import", str(self.directory), "--python", PYTHON, "--from", "torch", str(self.saved)]
        answer = subprocess.run(limited, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(2, answer.returncode, answer.stderr)
        self.assertRegex(answer.stderr, r"^lockstep: \S+/rank_00000\.safetensors: File too large\n$")
        self.assertEqual([], list(self.directory.glob(".incoming_*")))

    def test_an_export_that_can_t_be_written_leaves_the_one_before(self):
        self.run_job()
        self.saved.write_bytes(b"before")
        limited = ["prlimit", "--fsize=4096", BINARY, "checkpoint", "export", str(self.directory), "--python", PYTHON, "--to", "torch"]
        pipe = self.saved.with_name("pipe")
        os.mkfifo(pipe)
        whys = {f"{self.saved}": "File too large", "/nowhere/a.pt": "No such file or directory"}
        texts = {target: f"{target}: {why}" for target, why in whys.items()}
        texts[f"{pipe}"] = f"{pipe} is no place for a regular file; name another one to write"
        for target, text in texts.items():
            answer = subprocess.run([*limited, target], capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual((2, f"lockstep: {text}\n"), (answer.returncode, answer.stderr))
        self.assertTrue(pipe.is_fifo(), "a device's place would have gone to a file alike")
        self.assertEqual(b"before", self.saved.read_bytes())
        self.assertEqual([], list(self.saved.parent.glob(".*")))

    def test_what_does_not_fit_is_refused(self):
        self.run_job()
        self.convert("export", "--to", "torch", str(self.saved))
        saved = torch.load(self.saved)
        saved["ranks"]["0"]["tensors"]["kinds.float32"] = torch.zeros(2, 3, dtype=torch.float64)
        torch.save(saved, self.saved)
        answer = self.convert("import", "--from", "torch", str(self.saved))
        self.assertNotEqual(0, answer.returncode)
        self.assertIn("kinds.float32 is torch.float64 of shape [2, 3], expected float32 of shape [2, 3]", answer.stderr)
        self.assertEqual(1, len(self.checkpoints()))

    def test_files_of_another_origin_are_refused(self):
        self.run_job()
        self.convert("export", "--to", "torch", str(self.saved))
        whole, saved = self.saved.read_bytes(), torch.load(self.saved)
        for content, expected in ((whole[: len(whole) // 2], "can't be read as a file of torch.save, it is damaged"), (b"", "can't be read"),
                                  ({"model": {}}, "has no 'step': expected what `lockstep checkpoint export` writes"),
                                  ([1, 2], "has no 'step'"), ({**saved, "world_size": 2}, "has no rank 1, expected 2 of them")):
            self.saved.write_bytes(content) if isinstance(content, bytes) else torch.save(content, self.saved)
            answer = self.convert("import", "--from", "torch", str(self.saved))
            self.assertEqual(2, answer.returncode, answer.stderr)
            self.assertIn(f"{self.saved} {expected}", answer.stderr)
            self.assertEqual(1, len(answer.stderr.splitlines()), answer.stderr)
        self.assertEqual(1, len(self.checkpoints()))

    def test_dcp_needs_a_newer_torch(self):
        if int(torch.__version__.split(".")[0]) >= 2:
            self.skipTest("this torch has it")
        self.run_job()
        answer = self.convert("export", "--to", "dcp", str(self.saved))
        self.assertNotEqual(0, answer.returncode)
        self.assertIn("use torch 2.2 or newer by --python, or the format torch", answer.stderr)


class SmallDisk(DiskCheckpoint):
    """A file system of the test's own, which can fill up."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("mounting a small tmpfs needs root")
        self.directory.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "none", str(self.directory)], capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"a small tmpfs can't be mounted here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", str(self.directory)], check=True)

    def fill(self):
        """All but what half a checkpoint takes. A flush that is under way takes and gives room meanwhile: so again and again."""
        half = sum(path.stat().st_size for path in next(self.directory.glob("step_*")).iterdir()) // 2
        room = os.statvfs(self.directory)
        try:
            with open(self.directory / "filler", "ab", buffering=0) as filler:
                filler.write(bytes(max(0, room.f_bavail * room.f_bsize - half)))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def fails_in_a_full_disk(self, run):
        self.fill()
        return self.disk_status(run).get("failures", 0) >= 2

    def test_full_and_then_not(self):
        run = self.train(*ddp(steps=200))
        run.wait("a checkpoint on disk", lambda: self.disk_status(run).get("flushes", 0) >= 1)
        run.wait("a flush that fails", lambda: self.fails_in_a_full_disk(run))
        self.assertIn("No space left on device", self.disk_status(run)["error"], run)
        self.assertEqual(1, run.stderr().count("No space left on device"), "once per cause")
        run.wait("room given back", lambda: not any(name.startswith(".incoming") for name in os.listdir(self.directory)))
        self.assertEqual(0, self.ask("verify")[0], "the last good one")
        before = self.disk_status(run)["flushes"]
        (self.directory / "filler").unlink()
        run.wait("a flush that succeeds", lambda: self.disk_status(run).get("flushes", 0) > before)
        self.assertIn("the checkpoint of step", run.stderr(), run)
        run.finish()
        self.assertEqual([], run.faults(), run)
        run.assert_undisturbed_result(200)


if __name__ == "__main__":
    unittest.main()
