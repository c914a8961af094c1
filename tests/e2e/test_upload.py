"""Copies of checkpoints in a store: a mounted directory, and S3, whose server (s3_server.py) is a stand-in of the tests' own."""
import base64
import fcntl
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import threading
import unittest

from harness import BINARY, STEPS, Run, RunTest, ddp, inherited, kill, undisturbed
from s3_server import S3Server

LARGE = 20 << 20  # of a file: in several parts


def crc32c_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = crc32c_table()


def crc32c(data, before=0):
    crc = before ^ 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def crc32c_of_zeros(count, before):
    """Of many zeros: the registers are linear, so doubling is squaring a matrix."""
    def times(matrix, vector):
        result, i = 0, 0
        while vector:
            if vector & 1:
                result ^= matrix[i]
            vector, i = vector >> 1, i + 1
        return result

    step = [TABLE[(1 << i) & 0xFF] ^ ((1 << i) >> 8) for i in range(32)]
    crc = before ^ 0xFFFFFFFF
    while count:
        if count & 1:
            crc = times(step, crc)
        step, count = [times(step, row) for row in step], count >> 1
    return crc ^ 0xFFFFFFFF


def make_rank(path, content):
    """A rank's file, of one tensor of these bytes, or of so many zeros, and its entry of the manifest."""
    size = content if isinstance(content, int) else len(content)
    table = json.dumps([{"name": "content", "dtype": "U8", "shape": [size], "offset": 0, "bytes": size}]).encode()
    meta = struct.pack("<Q", len(table)) + table
    metadata = {"format": "pt", "lockstep.torch": "{}", "lockstep.meta": base64.b64encode(meta).decode()}
    head = json.dumps({"__metadata__": metadata, "content": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    head += b" " * (-len(head) % 8)
    head = struct.pack("<Q", len(head)) + head
    path.write_bytes(head if isinstance(content, int) else head + content)
    os.truncate(path, len(head) + size)
    padded = meta + bytes(-len(meta) % 64)
    of_file, of_slot = (crc32c_of_zeros(content, crc32c(begin)) if isinstance(content, int) else crc32c(content, crc32c(begin)) for begin in (head, padded))
    return {"name": path.name, "bytes": len(head) + size, "crc32c": of_file, "slot_bytes": len(padded) + size, "slot_meta_bytes": len(meta),
            "slot_crc32c": of_slot}


def make_checkpoint(directory, step, epoch=1, files=None):
    """A checkpoint as docs/formats/checkpoint.md has it."""
    folder = pathlib.Path(directory) / f"step_{step:012}_epoch_{epoch}"
    folder.mkdir(parents=True)
    contents = files or [b"rank zero of step %d" % step, b"rank one, a little longer, of step %d" % step]
    entries = [{"rank": rank, **make_rank(folder / f"rank_{rank:05}.safetensors", content)} for rank, content in enumerate(contents)]
    manifest = {"format": "lockstep checkpoint", "version": 1, "step": step, "epoch": epoch, "world_size": len(entries), "job": "test",
                "written": "2026-01-01T00:00:00Z", "files": entries}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


class Copying(RunTest):
    def setUp(self):
        self.here, self.back = self.folder() / "here", self.folder() / "back"
        self.here.mkdir()

    def lockstep(self, *words, env=None):
        return subprocess.run([BINARY, "checkpoint", *map(str, words)], capture_output=True, text=True, timeout=60, env={**inherited(), **(env or {})})

    def good(self, *words, env=None):
        answer = self.lockstep(*words, env=env)
        self.assertEqual(0, answer.returncode, answer.stderr)
        return answer.stdout

    def refused(self, *words, env=None, code=None):
        """The one line on stderr."""
        answer = self.lockstep(*words, env=env)
        self.assertNotEqual(0, answer.returncode, answer.stdout)
        self.assertEqual(1, len(answer.stderr.splitlines()), answer.stderr)
        return answer.stderr

    def steps(self, url, env=None):
        return [one["step"] for one in json.loads(self.good("list", url, "--json", env=env))["checkpoints"]]

    def assert_same(self, name):
        for path in (self.here / name).glob("rank_*"):
            self.assertEqual(path.read_bytes(), (self.back / name / path.name).read_bytes(), path.name)


class ByS3(Copying):
    URL = "s3://bucket/some/where"

    def setUp(self):
        super().setUp()
        self.s3 = self.enterContext(S3Server())
        self.env = self.s3.environment()

    def upload(self, *words):
        return self.lockstep("upload", self.here, self.URL, *words, env=self.env)

    def test_there_and_back(self):
        folder = make_checkpoint(self.here, 7, files=[LARGE, b"small", b""])
        self.good("upload", self.here, self.URL, env=self.env)
        self.assertEqual([], self.s3.refused, "every request was signed well")
        self.assertTrue(any("partNumber" in path for _, path in self.s3.log), "the large one went in parts")
        self.assertEqual({}, self.s3.uploads)
        put = [path for method, path in self.s3.log if method == "PUT"]
        self.assertTrue(put[-1].endswith("manifest.json"), put)
        self.assertEqual([7], self.steps(self.URL, self.env))
        self.assertIn('"valid": true', self.good("verify", self.URL, "--json", env=self.env))
        self.good("fetch", self.URL, self.back, env=self.env)
        self.assert_same(folder.name)
        self.assertIn('"valid": true', self.good("verify", self.back, "--json"))

    def test_keeps_the_newest(self):
        for step in (1, 2, 3, 4):
            make_checkpoint(self.here, step)
            self.good("upload", self.here, self.URL, "--keep", 2, env=self.env)
        self.assertEqual([4, 3], self.steps(self.URL, self.env))
        self.assertEqual(6, len(self.s3.objects))

    def test_an_older_one_is_refused(self):
        make_checkpoint(self.here, 4, epoch=2)
        self.good("upload", self.here, self.URL, env=self.env)
        shutil.rmtree(self.here)
        make_checkpoint(self.here, 9, epoch=1)
        self.assertIn("a stale run writes nothing", self.refused("upload", self.here, self.URL, env=self.env))
        self.assertEqual([4], self.steps(self.URL, self.env))

    def test_without_its_manifest_it_is_not_there(self):
        folder = make_checkpoint(self.here, 3)
        for path in folder.glob("rank_*"):
            self.s3.objects[f"some/where/{folder.name}/{path.name}"] = path.read_bytes()
        self.s3.uploads["left"] = (f"some/where/{folder.name}/rank_00000.safetensors", {1: b"x"})
        self.assertEqual([], self.steps(self.URL, self.env))
        self.assertIn("holds no checkpoint that is whole", self.refused("fetch", self.URL, self.back, env=self.env))
        make_checkpoint(self.here, 5)
        self.good("upload", self.here, self.URL, env=self.env)
        self.assertEqual(3, len(self.s3.objects), "what was half is gone")
        self.assertEqual({}, self.s3.uploads)

    def test_parts_alone_are_cleared_too(self):
        """Of a writer that was killed before the first object was whole, several pages of them; what is newer may be on its way."""
        names = [f"step_{step:012}_epoch_1/rank_{rank:05}.safetensors" for step in (1, 2) for rank in range(4)]
        newer = "some/where/step_000000000009_epoch_1/rank_00000.safetensors"
        others = "some/where/notes/rank_00000.safetensors"
        for key in [*(f"some/where/{name}" for name in names), newer, others]:
            self.s3.uploads[key] = (key, {1: b"x"})
        make_checkpoint(self.here, 5)
        self.good("upload", self.here, self.URL, env=self.env)
        self.assertEqual({newer, others}, set(self.s3.uploads))

    def test_an_old_one_goes_with_the_folders_in_it(self):
        folder = make_checkpoint(self.here, 1)
        self.upload()
        self.s3.objects[f"some/where/{folder.name}/notes/deep/a.txt"] = b"a person's"
        self.s3.objects[f"some/where/{folder.name}/notes/"] = b""  # as a console makes a folder
        make_checkpoint(self.here, 2)
        self.upload("--keep", 1)
        self.assertEqual({"step_000000000002_epoch_1"}, {key.split("/")[2] for key in self.s3.objects})

    def test_who_only_reads_lists_no_uploads(self):
        make_checkpoint(self.here, 5)
        self.good("upload", self.here, self.URL, env=self.env)
        self.s3.log.clear()
        self.good("fetch", self.URL, self.back, env=self.env)
        self.assertFalse([path for _, path in self.s3.log if "uploads" in path])

    def test_busy_is_not_damaged(self):
        """A store that does not answer for a while costs no checkpoint that is there."""
        folder = make_checkpoint(self.here, 5)
        self.good("upload", self.here, self.URL, env=self.env)
        before = dict(self.s3.objects)
        self.s3.trouble = lambda handler: handler.command == "HEAD" and "rank_00001" in handler.path and (handler.fail(503, "SlowDown", "") or True)
        self.assertNotEqual(0, self.upload().returncode)
        self.assertEqual(before, self.s3.objects)
        self.s3.trouble = None
        self.good("upload", self.here, self.URL, env=self.env)
        # ... and of what is here, what was fetched is read before it counts.
        self.good("fetch", self.URL, self.back, env=self.env)
        (self.back / folder.name / "rank_00001.safetensors").write_bytes(b"R" + (self.here / folder.name / "rank_00001.safetensors").read_bytes()[1:])
        self.good("fetch", self.URL, self.back, env=self.env)
        self.assert_same(folder.name)

    def test_fetch_passes_over_a_damaged_one(self):
        for step in (1, 2):
            make_checkpoint(self.here, step)
            self.good("upload", self.here, self.URL, env=self.env)
        key, = (key for key in self.s3.objects if key.endswith("2_epoch_1/rank_00001.safetensors"))
        data = bytearray(self.s3.objects[key])
        data[3] ^= 1
        self.s3.objects[key] = bytes(data)
        answer = self.lockstep("fetch", self.URL, self.back, env=self.env)
        self.assertEqual(0, answer.returncode, answer.stderr)
        self.assertRegex(answer.stderr, r"passed over: s3://bucket/some/where/.*rank_00001.safetensors has CRC")
        self.assertEqual([1], self.steps(self.back))
        for damage in bytes(data), b"":
            self.s3.objects[key] = damage
            self.good("upload", self.here, self.URL, env=self.env)  # replaces it
            self.good("verify", self.URL, env=self.env)

    def test_a_damaged_one_is_not_uploaded(self):
        folder = make_checkpoint(self.here, 1)
        path = folder / "rank_00000.safetensors"
        path.write_bytes(path.read_bytes().replace(b"rank zero", b"RANK zero"))
        self.assertIn("holds no checkpoint that is whole", self.lockstep("upload", self.here, self.URL, env=self.env).stderr)
        self.assertEqual({}, self.s3.objects)

    def test_busy_for_a_while(self):
        make_checkpoint(self.here, 1, files=[LARGE])
        self.s3.trouble = self.s3.busy(4)
        self.good("upload", self.here, self.URL, env=self.env)
        self.s3.trouble = self.s3.busy(4, "POST")
        self.assertEqual([1], self.steps(self.URL, self.env))

    def test_busy_for_ever(self):
        make_checkpoint(self.here, 1)
        self.s3.trouble = self.s3.busy(10**9)
        self.assertIn("answered with status 503, SlowDown, Please reduce", self.refused("upload", self.here, self.URL, env=self.env))
        self.s3.trouble = None
        self.assertEqual([], self.steps(self.URL, self.env))

    def test_dies_at_every_request(self):
        """Whatever request of an upload is the last one that is answered: the old one or the new one is there, whole."""
        for step in (1, 2):
            make_checkpoint(self.here, step)
        shutil.move(self.here / "step_000000000002_epoch_1", self.here.parent / "next")
        self.good("upload", self.here, self.URL, "--keep", 1, env=self.env)
        shutil.move(self.here.parent / "next", self.here / "step_000000000002_epoch_1")
        before, seen = dict(self.s3.objects), set()
        for served in range(100):
            self.s3.objects, left = dict(before), [served]
            killed = []

            def dies(handler, left=left, killed=killed):
                left[0] -= 1
                if left[0] >= 0:
                    return False
                handler.hang_up()
                upload.kill()  # no try after: the client dies with it, as a machine that is lost
                killed.append(True)
                return True

            self.s3.trouble = dies
            upload = subprocess.Popen([BINARY, "checkpoint", "upload", self.here, self.URL, "--keep", "1"], env={**inherited(), **self.env},
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            code = upload.wait(30)
            self.s3.trouble = None
            found = self.steps(self.URL, self.env)
            self.assertIn(found, ([1], [2], [2, 1]), served)
            self.assertIn('"valid": true', self.good("verify", self.URL, "--json", env=self.env))
            seen.add(found[0])
            self.good("upload", self.here, self.URL, "--keep", "1", env=self.env)
            self.assertEqual([2], self.steps(self.URL, self.env), served)
            self.assertEqual(3, len(self.s3.objects), served)
            if not killed:
                self.assertEqual(0, code)
                break
        self.assertEqual({1, 2}, seen)
        self.assertGreater(served, 8)

    def test_what_is_wrong_is_said(self):
        make_checkpoint(self.here, 1)
        for env, words in (({"AWS_SECRET_ACCESS_KEY": "another"}, "status 403, SignatureDoesNotMatch"), ({"AWS_ACCESS_KEY_ID": ""}, "needs AWS_ACCESS_KEY_ID"),
                           ({"AWS_REGION": "elsewhere"}, "status 403, AuthorizationHeaderMalformed"),
                           ({"AWS_ENDPOINT_URL": "127.0.0.1"}, "must begin with http:// or https://")):
            self.assertIn(words, self.refused("upload", self.here, self.URL, env={**self.env, **env}))
        self.assertIn("NoSuchBucket", self.refused("list", "s3://other/x", env=self.env))
        self.assertIn("expected s3://BUCKET/PREFIX", self.refused("list", "s3:///x", env=self.env))
        self.assertIn("expected s3://BUCKET/PREFIX, file:///PATH or a path", self.refused("upload", self.here, "gs://b/x", env=self.env))


class ByDirectory(Copying):
    def test_there_and_back(self):
        folder, url = make_checkpoint(self.here, 7), f"file://{self.folder()}/share/deep"
        self.good("upload", self.here, url)
        self.assertEqual([7], self.steps(url))
        self.good("fetch", url, self.back)
        self.assert_same(folder.name)

    def test_little_memory_is_no_damage(self):
        """No rank's state need fit into memory, and the newest checkpoint stays the newest."""
        for step, files in ((1, None), (2, [256 << 20])):
            make_checkpoint(self.here, step, files=files)
        for words in (("verify", self.here), ("upload", self.here, self.folder() / "share"), ("fetch", self.here, self.back), ("fetch", self.here, self.back)):
            little = ["prlimit", "--as=250000000", BINARY, "checkpoint", *map(str, words)]
            answer = subprocess.run(little, capture_output=True, text=True, timeout=120, check=False, env=inherited())
            self.assertEqual((0, ""), (answer.returncode, answer.stderr), words)
        self.assertEqual([2], self.steps(self.back))

    def test_what_can_not_be_read_is_no_reason_for_an_older_one(self):
        make_checkpoint(self.here, 1)
        manifest, share = make_checkpoint(self.here, 2) / "manifest.json", self.folder() / "share"
        manifest.unlink()
        manifest.symlink_to(manifest.name)
        said = f"lockstep: can't be verified: {manifest}: Too many levels of symbolic links\n"
        for words in (("verify", self.here), ("upload", self.here, share), ("export", self.here, "--to", "torch", share)):
            answer = self.lockstep(*words)
            self.assertEqual((2, said), (answer.returncode, answer.stderr), words)
        self.assertFalse(share.exists())
        manifest.unlink()
        self.assertIn(f"passed over: {manifest}: No such file", self.lockstep("upload", self.here, share).stderr)
        self.assertEqual([1], self.steps(share))

    def test_one_at_a_time(self):
        make_checkpoint(self.here, 1)
        share = self.folder()
        other = os.open(share, os.O_RDONLY)
        self.addCleanup(os.close, other)
        fcntl.flock(other, fcntl.LOCK_EX)
        self.assertIn(f"{share}: another process is writing there", self.refused("upload", self.here, share))
        fcntl.flock(other, fcntl.LOCK_UN)
        self.good("upload", self.here, share)

    def test_not_where_a_run_keeps_its_own(self):
        make_checkpoint(self.here, 1)
        share = self.folder()
        with open(share / ".lock", "w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            self.assertIn(f"{share}: a run keeps its own checkpoints there: name another directory", self.refused("upload", self.here, share))
        self.assertEqual([".lock"], os.listdir(share))
        self.good("upload", self.here, share)

    def test_full(self):
        if os.geteuid() != 0:
            self.skipTest("mounting a small tmpfs needs root")
        share = self.folder()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "none", share], capture_output=True).returncode != 0:
            self.skipTest("a small tmpfs can't be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", share], check=True)
        make_checkpoint(self.here, 1)
        self.good("upload", self.here, share)
        make_checkpoint(self.here, 2, files=[2 << 20])
        self.assertIn("No space left on device", self.refused("upload", self.here, share))
        self.assertEqual(["step_000000000001_epoch_1"], os.listdir(share))


class Job(Copying):
    """Of a real job: its training waits for no store, and its checkpoints come back from there when all of its disk is gone."""

    def setUp(self):
        super().setUp()
        self.s3 = self.enterContext(S3Server())

    def train(self, *args, url="s3://bucket/job", interval=0.2, **more):
        options = ("--checkpoint-dir", self.here, "--checkpoint-interval-s", interval, "--checkpoint-upload", url)
        return Run(self, "ddp.py", *args, options=map(str, options), env=self.s3.environment(), ranks=2, **more)

    def uploaded(self, run):
        return ((run.status().get("checkpoint", {}).get("disk") or {}).get("upload")) or {}

    def first_step(self, run):
        return min(line["step"] for line in run.steps())

    def test_everything_else_is_lost(self):
        run = self.train(*ddp())
        run.wait("a checkpoint in the store", lambda: (self.uploaded(run).get("step") or -1) >= 5)
        for pid in run.processes():
            kill(pid, signal.SIGKILL)
        run.watcher.wait(10)
        shutil.rmtree(self.here)
        newest = self.steps("s3://bucket/job", self.s3.environment())[0]
        again = self.train(*ddp(), interval=600)
        again.finish()
        self.assertEqual(newest + 1, self.first_step(again), again)
        self.assertIn(f"fetched the checkpoint of step {newest} from s3://bucket/job", again.stderr(), again)
        self.assert_undisturbed(again)
        self.assertEqual(STEPS - 1, self.steps("s3://bucket/job", self.s3.environment())[0], "the last one too, before it ends")
        self.assertEqual([], self.s3.refused)
        self.assertEqual(2, len(self.steps("s3://bucket/job", self.s3.environment())))

    def test_a_store_that_dies_and_comes_back(self):
        """The job is ended only when all has been seen: how long the tries take is the machine's business."""
        run = self.train(*ddp(steps=5000))
        run.wait("a checkpoint in the store", lambda: self.uploaded(run).get("uploads", 0) >= 1)
        self.s3.trouble = lambda handler: handler.hang_up() or True
        run.wait("an upload that fails", lambda: self.uploaded(run).get("failures", 0) >= 1)
        step = run.step()
        run.wait_for_step(step + 5)
        self.s3.trouble = None
        run.watcher.terminate()
        run.finish(1)
        self.assertIn("no checkpoint uploaded this time", run.stderr(), run)
        self.assertEqual([], run.faults(), run)
        there = self.steps("s3://bucket/job", self.s3.environment())[0]
        self.assertEqual(self.steps(self.here)[0], there, "what is on disk, which a flush under way at the end keeps from being the last step")
        self.assertGreater(there, step, run)

    def test_a_store_that_hangs_is_given_up_by_a_second_signal(self):
        release = threading.Event()
        self.addCleanup(release.set)
        run = self.train(*ddp(steps=5000))
        run.wait("a checkpoint in the store", lambda: self.uploaded(run).get("uploads", 0) >= 1)
        self.s3.trouble = lambda handler: release.wait(60) and handler.hang_up() or True
        run.wait("an upload that hangs", lambda: self.uploaded(run).get("uploading"))
        run.wait_for_step(run.step() + 10)
        run.watcher.terminate()
        run.wait("the end, but for the upload", lambda: run.status().get("state") == "finished")
        run.hold("it waits for the upload", 1, lambda: run.watcher.poll() is not None)
        run.watcher.terminate()
        self.assertEqual(1, run.watcher.wait(20), run)
        self.assertEqual([], run.faults(), run)

    def test_refused_at_the_start(self):
        for url, words in (("gs://b", "--checkpoint-upload: \"gs://b\": expected s3://BUCKET/PREFIX"), ("s3://other/x", "and what is in s3://other/x can't be seen")):
            run = self.train(*ddp(), url=url)
            self.assertEqual(2, run.watcher.wait(30), run)
            self.assertIn(words, run.stderr(), run)

    def test_a_store_that_says_nothing_at_the_start(self):
        """Not even to the first question. Who waits for it learns so, and is heard."""
        release = threading.Event()
        self.addCleanup(release.set)
        self.s3.trouble = lambda handler: release.wait(60) and handler.hang_up() or True
        for number in (signal.SIGTERM, signal.SIGINT):
            run = self.train(*ddp())
            run.wait("a line that says why nothing begins", lambda: "asking s3://bucket/job for a checkpoint" in run.stderr())
            run.watcher.send_signal(number)
            run.finish(1, timeout=20)
            self.assertIn("stopped before the job began, asking s3://bucket/job", run.stderr(), run)
            self.assertEqual([], os.listdir(run.dir), run)

    def test_a_404_is_no_empty_store(self):
        """Of what stands in the store's place: a job that began at its beginning would be a job that lost its checkpoints."""
        self.s3.trouble = lambda handler: handler.answer(404, b"<html>no such page</html>") or True
        run = self.train(*ddp())
        self.assertNotEqual(0, run.watcher.wait(30), run)
        self.assertRegex(run.stderr(), rf"what is in s3://bucket/job can't be seen: GET s3://bucket/: http://127.0.0.1:{self.s3.port} answered with status 404", run)
        self.assertEqual([], run.steps(), run)

    def assert_undisturbed(self, run):
        expected, found = undisturbed(STEPS, ranks=2), json.loads(run.out.read_text())
        for part in expected:
            self.assertEqual(expected[part], found.get(part), run)


if __name__ == "__main__":
    unittest.main()
