"""Checkpoints that real torch wrote, by 2 ranks of gloo: what is said of them, what lockstep.reshape reads of them, and runs that begin there."""
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy

from harness import BINARY, JOBS, PYTHON, ROOT, Run, RunTest, free_port, inherited

sys.path.insert(0, str(ROOT / "python"))
os.environ["LOCKSTEP_BINARY"] = str(BINARY)
from lockstep import _written, reshape  # noqa: E402

TRIXIE = ROOT / "tests/e2e/trixie"
SAVED = 5
# Rank r has the r-th quarter of 0 to 999 and of 1000 to 1332 with 3 zeros behind.
SHARES_A_BUFFER = """
import torch, lockstep
import torch.distributed as dist

dist.init_process_group("gloo")
first, second = torch.arange(1000.), torch.cat([torch.arange(1000., 1333.), torch.zeros(3)])
shares = [whole.chunk(4)[dist.get_rank()] for whole in (first, second)]
ckpt = lockstep.Checkpoint({"flat": torch.cat(shares)})
ckpt.restore()
ckpt.step(0)
dist.destroy_process_group()
"""


# On a mesh that does not count the ranks in order.
SHARDS_ON_A_MESH = """
import torch, lockstep
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = DeviceMesh("cpu", [[0, 2], [1, 3]])
ckpt = lockstep.Checkpoint({"w": distribute_tensor(torch.arange(16.).view(4, 4), mesh, [Shard(0), Shard(1)])})
ckpt.restore()
ckpt.step(0)
dist.destroy_process_group()
"""


@functools.cache
def saved_elsewhere(python):
    """A folder with what elsewhere.py saves; one for all tests of an interpreter."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-e2e-", dir="/tmp"))
    unittest.addModuleCleanup(shutil.rmtree, folder)
    save_elsewhere(folder, python)
    return folder


def save_elsewhere(folder, python):
    """elsewhere.py's 2 ranks, without Lockstep."""
    shared = {**inherited(), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "USE_LIBUV": "0"}
    command = [python, str(JOBS / "elsewhere.py"), "save", str(folder)]
    workers = [subprocess.Popen(command, env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for rank in range(2)]
    said = [worker.communicate(timeout=100)[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        raise AssertionError("\n".join(said))


class Torch(RunTest):
    """Of Debian 12's torch 1.13."""

    @classmethod
    def setUpClass(cls):
        cls.saved = saved_elsewhere(cls.python)
        cls.expected = json.loads((cls.saved / "expected/index.json").read_text())

    def bytes_of(self, name):
        return (self.saved / "expected" / self.expected[name]["file"]).read_bytes()

    def array_of(self, name):
        stand_in = {"bfloat16": "uint16"}.get(self.expected[name]["dtype"], self.expected[name]["dtype"])
        return numpy.frombuffer(self.bytes_of(name), stand_in).reshape(self.expected[name]["shape"])

    def inspect(self, path, code=0):
        answer = subprocess.run([BINARY, "checkpoint", "inspect", str(path), "--json"], capture_output=True, text=True, timeout=30)
        self.assertEqual(code, answer.returncode, answer.stderr)
        return json.loads(answer.stdout) if answer.stdout else answer.stderr

    def import_(self, source, *words, code=0):
        out = self.folder() / "checkpoints"
        command = [BINARY, "checkpoint", "import", str(self.saved / source), "--out", str(out), *words]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(code, answer.returncode, answer.stdout + answer.stderr)
        return out, answer.stdout + answer.stderr

    def run_from(self, checkpoints, *words):
        run = Run(self, "elsewhere.py", *words, ranks=2, options=["--checkpoint-dir", str(checkpoints)])
        run.finish()
        return run

    def assert_holds_all(self, saved, but=()):
        names = self.expected.keys() - set(but)
        self.assertEqual(names, saved.tensors.keys())
        for name, array in saved.load(dict.fromkeys(names)).items():
            self.assertEqual(self.expected[name]["dtype"], saved[name].dtype, name)
            self.assertEqual(tuple(self.expected[name]["shape"]), array.shape, name)
            self.assertEqual(self.bytes_of(name), array.tobytes(), name)


class Reading(Torch):
    def test_dcp_is_told_shard_by_shard(self):
        report = self.inspect(self.saved / "dcp")
        self.assertEqual(("dcp", 2, True, []), (report["kind"], report["world_size"], report["whole"], report["passed_over"]))
        rows = next(tensor for tensor in report["tensors"] if tensor["name"] == "rows")
        self.assertEqual([([0, 0], [3, 3], 0), ([3, 0], [2, 3], 1)],
                         sorted((shard["offsets"], shard["sizes"], shard["rank"]) for shard in rows["shards"]))
        self.assertEqual(SAVED, next(value["value"] for value in report["values"] if value["name"] == "step"))

    def test_dcp_holds_every_bit(self):
        self.assert_holds_all(reshape.open(self.saved / "dcp"))

    def test_a_file_holds_every_bit(self):
        saved = reshape.open(self.saved / "saved.pt")
        self.assert_holds_all(saved, but=["rows"])
        self.assertEqual(SAVED, saved.values["step"])
        self.assertEqual([0.8, 0.99], saved.values["optimizer.param_groups"][0]["betas"])

    def test_any_box_of_a_sharded_tensor(self):
        saved, rows = reshape.open(self.saved / "dcp"), self.array_of("rows")
        for first in range(5):
            for count in range(6 - first):
                box = saved.load({"rows": ((first, 1), (count, 2))})["rows"]
                self.assertTrue(numpy.array_equal(rows[first : first + count, 1:3], box), (first, count))

    def test_damage_is_named(self):
        folder = self.folder() / "dcp"
        subprocess.run(["cp", "-r", str(self.saved / "dcp"), str(folder)], check=True)
        victim = max(folder.glob("__1_*.distcp"), key=lambda path: path.stat().st_size)
        os.truncate(victim, victim.stat().st_size - 1)
        self.assertRegex(self.inspect(folder, code=2), rf"{victim}: it has \d+ bytes; \S+ should lie at \d+ with \d+")
        victim.unlink()
        self.assertIn(f"{victim}: No such file", self.inspect(folder, code=2))
        (folder / ".metadata").write_bytes(b"\x80\x02cos\nsystem\n(X\x02\0\0\0idtR.")
        self.assertIn(f"{folder}/.metadata: byte 2: GLOBAL os system is refused", self.inspect(folder, code=2))


class TakingOver(Torch):
    def test_a_run_begins_at_a_file_and_ends_with_the_same_bits(self):
        self.goes_on("saved.pt")

    def test_a_run_begins_at_dcp_and_ends_with_the_same_bits(self):
        self.goes_on("dcp")

    def goes_on(self, source):
        out, _ = self.import_(source, "--world", "2")
        run = self.run_from(out, "go_on", str(self.saved))
        found = json.loads((self.saved / "taken_over.json").read_text())
        self.assertEqual(SAVED + 1, found["first"], run)
        self.assertEqual(json.loads((self.saved / "result.json").read_text()), found["state"], run)
        self.assertRegex(run.stderr(), r"\d+ of \d+ things in the imported checkpoint are in nothing that the script gives", run)

    def test_what_was_imported_can_be_read_again_and_split(self):
        out, _ = self.import_("dcp", "--world", "3", "--shard", "model.*.weight=0", "--shard", "rows=1")
        saved = reshape.open(out)
        self.assertEqual(("lockstep", 3, SAVED), (saved.kind, saved.world_size, saved.step))
        self.assertEqual([[0, 0], [0, 1], [0, 2]], [shard["offsets"] for shard in saved["rows"].shards])
        self.assert_holds_all(saved)

    def test_as_saved_for_as_many_ranks_as_saved_it(self):
        out, _ = self.import_("dcp", "--as-saved")
        self.assertEqual(2, reshape.open(out).world_size)
        _, said = self.import_("saved.pt", "--as-saved", code=2)
        self.assertRegex(said, r"--as-saved: \S+saved.pt does not say which rank saved what: give --world N in its place")

    def test_a_script_with_another_model_is_told(self):
        out, _ = self.import_("saved.pt", "--world", "2", "--rename", "model.=net.")
        run = Run(self, "elsewhere.py", "look", str(self.saved), ranks=2, options=["--checkpoint-dir", str(out)])
        run.finish(1)
        self.assertRegex(run.stderr(), r"the imported checkpoint lacks model\.0\.weight: .*import it with --rename", run)


class Torch2:
    """Of Debian 13's torch 2.6."""

    python = str(TRIXIE / "python")

    @classmethod
    def setUpClass(cls):
        made = subprocess.run([TRIXIE / "make"], capture_output=True, text=True, check=False)
        if not (ROOT / ".cache/trixie/complete").exists():
            raise unittest.SkipTest(made.stderr.strip())
        super().setUpClass()


class Reading2(Torch2, Reading):
    pass


class TakingOver2(Torch2, TakingOver):
    def test_a_model_that_is_sharded_takes_its_part_of_whole_tensors(self):
        self.looks_sharded("--world", "2")

    def test_or_of_split_ones(self):
        self.looks_sharded("--world", "2", "--shard", "model.*weight=0", "--shard", "model.*bias=0")

    def looks_sharded(self, *words):
        out, _ = self.import_("dcp", *words)
        run = self.run_from(out, "look", str(self.saved), "sharded")
        found = json.loads((self.saved / "restored.json").read_text())
        self.assertEqual(SAVED, found["last"], run)
        self.assertEqual(json.loads((self.saved / "saved.json").read_text()), found["state"], run)
        self.assert_reads_the_run_s_own(out)

    def assert_reads_the_run_s_own(self, out):
        """What the 2 ranks of fully_shard have saved since, in which nothing was trained."""
        saved = reshape.open(out)
        self.assertEqual(("lockstep", SAVED + 1, []), (saved.kind, saved.step, saved.passed_over))
        for name in ("model.0.weight", "model.3.weight", "model.0.bias"):
            self.assertEqual(2, len(saved[name].shards))
            self.assertEqual(self.bytes_of(name), saved.load({name: None})[name].tobytes(), name)
        self.assertEqual([[0, 0], [5, 0]], [shard["offsets"] for shard in saved["model.0.weight"].shards])
        whole = self.array_of("optimizer.state.0.exp_avg")
        with mock.patch.dict(os.environ, LOCKSTEP_CHECKPOINT_DIR=str(out)):
            (newest,) = out.glob(f"step_{SAVED + 1:012}_epoch_*")
            written = _written.open(SAVED + 1, int(newest.name.rpartition("_")[2]))
        for rank, rows in enumerate((whole[:5], whole[5:])):
            self.assertEqual(rows.tolist(), written.optimizer("optimizer", rank)["state"][0]["exp_avg"].tolist(), rank)


class ZeRo(RunTest):
    """Flat buffers that 4 ranks share by ranges, of which each saves its own."""

    def test_another_world_gets_its_ranges(self):
        out, script = self.folder() / "checkpoints", self.folder() / "zero.py"
        script.write_text(SHARES_A_BUFFER)
        Run(self, script, options=["--checkpoint-dir", str(out)]).finish()
        saved, buckets = reshape.open(out), reshape.Buckets([1000, 333], multiple=8)
        whole = numpy.arange(1333, dtype="float32")
        for world in (1, 3, 4, 6):
            ranks = [saved.load_flat("flat", buckets, rank, world) for rank in range(world)]
            for start, size, place in ((0, 1000, 0), (1000, 333, buckets.share(1000, world))):
                parts = numpy.concatenate([rank[place : place + buckets.share(size, world)] for rank in ranks])
                self.assertEqual(whole[start : start + size].tobytes(), parts[:size].tobytes(), world)
                self.assertFalse(parts[size:].any(), "padding")
        with self.assertRaisesRegex(reshape.ReshapeError, "flat of rank 0 and of rank 1 differ: they are no copies of one"):
            saved.load({"flat": None})


class Mesh(Torch2, RunTest):
    def test_each_shard_lies_where_its_rank_stands_in_the_mesh(self):
        out, script = self.folder() / "checkpoints", self.folder() / "mesh.py"
        script.write_text(SHARDS_ON_A_MESH)
        Run(self, script, options=["--checkpoint-dir", str(out)]).finish()
        saved = reshape.open(out)
        self.assertEqual([[0, 0], [2, 0], [0, 2], [2, 2]], [shard["offsets"] for shard in saved["w"].shards])
        self.assertEqual(numpy.arange(16).reshape(4, 4).tolist(), saved.load({"w": None})["w"].tolist())


if __name__ == "__main__":
    unittest.main()
