"""lockstep.reshape: from any old world to any new one, what the new ranks get makes up the whole again, bit for bit."""
import math
import os
import random
import sys
import tempfile
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "..", "python"), HERE]

import numpy

try:
    import torch
except ImportError:
    torch = None

from lockstep.reshape import Buckets, ReshapeError, Saved

CASES = 150


class Files(unittest.TestCase):
    """Checkpoints as `lockstep checkpoint inspect --json` tells of them, without torch."""

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.random = random.Random(5)
        self.files = 0

    def noise(self, shape, dtype="float32"):
        count = math.prod(shape) * numpy.dtype(dtype).itemsize
        return numpy.frombuffer(self.random.randbytes(count), dtype).reshape(shape)  # NaN and all

    def shard(self, array, offsets, rank, order="C"):
        """Writes it behind some bytes of others', so that nothing is aligned."""
        name, before = f"{self.files}.bin", self.random.randrange(9)
        self.files += 1
        with open(os.path.join(self.folder, name), "wb") as file:
            file.write(bytes(before) + array.tobytes(order) + b"end")
        strides = numpy.empty(array.shape, "u1", order=order).strides
        return {"offsets": list(offsets), "sizes": list(array.shape), "strides": list(strides), "file": name, "at": before, "rank": rank}

    def saved(self, shape, shards, dtype="float32", name="x"):
        tensor = {"name": name, "dtype": dtype, "shape": list(shape), "shards": shards}
        return Saved({"kind": "test", "folder": self.folder, "step": None, "world_size": None, "tensors": [tensor], "values": [], "passed_over": []})


class AnyBox(Files):
    def cuts(self, length):
        """Where a dimension is cut."""
        return sorted({0, length, *(self.random.randint(0, length) for _ in range(self.random.randint(0, 3)))})

    def boxes(self, shape):
        """A grid of boxes that makes up the shape."""
        found = [((), ())]
        for length in shape:
            cuts = self.cuts(length)
            pairs = list(zip(cuts, cuts[1:])) or [(0, 0)]
            found = [(offsets + (low,), sizes + (high - low,)) for offsets, sizes in found for low, high in pairs]
        return found

    def test_from_any_grid_to_any_other(self):
        for case in range(CASES):
            shape = [self.random.randint(0, 9) for _ in range(self.random.randint(0, 3))]
            dtype = self.random.choice(["float32", "int64", "uint8", "float16", "complex128"])
            whole = self.noise(shape, dtype)
            shards = [self.shard(self.cut(whole, offsets, sizes), offsets, rank, self.random.choice("CF"))
                      for rank, (offsets, sizes) in enumerate(self.boxes(shape))]
            saved, again = self.saved(shape, shards, dtype), numpy.zeros(shape, dtype)
            for offsets, sizes in self.boxes(shape):
                again[self.slices(offsets, sizes)] = saved.load({"x": (offsets, sizes)})["x"]
            self.assertEqual(whole.tobytes(), again.tobytes(), (case, shape))
            self.assertEqual(whole.tobytes(), saved.load({"x": None})["x"].tobytes(), (case, shape))

    def slices(self, offsets, sizes):
        return tuple(slice(low, low + size) for low, size in zip(offsets, sizes))

    def cut(self, whole, offsets, sizes):
        return numpy.array(whole[self.slices(offsets, sizes)])

    def test_one_piece_is_a_view_of_the_file(self):
        saved = self.saved([4, 6], [self.shard(self.noise([4, 6]), (0, 0), 0)])
        for box in (None, ((1, 0), (2, 6)), ((0, 2), (4, 1))):
            array = saved.load({"x": box})["x"]
            self.assertFalse(array.flags.writeable or array.flags.owndata, box)

    def test_copies_are_compared_and_must_agree(self):
        one, other = self.noise([3]), self.noise([3])
        alike = self.saved([3], [self.shard(one, (0,), rank) for rank in range(3)])
        self.assertEqual(one.tobytes(), alike.load({"x": None})["x"].tobytes())
        differ = self.saved([3], [self.shard(array, (0,), rank) for rank, array in enumerate([one, one, other])])
        with self.assertRaisesRegex(ReshapeError, "x of rank 0 and of rank 2 differ: .*name one by rank="):
            differ.load({"x": None})
        self.assertEqual(other.tobytes(), differ.load({"x": None}, rank=2)["x"].tobytes())

    def test_what_is_not_there_is_said(self):
        saved = self.saved([4], [self.shard(self.noise([2]), (0,), 0)])
        for want, text in (({"y": None}, "has no tensor y"), ({"x": ((3,), (2,))}, r"it has no box of \[2\] at \[3\]"),
                           ({"x": ((-1,), (2,))}, "it has no box"), ({"x": None}, "of the 4 elements from \\[0\\] on, 2 are")):
            with self.subTest(text), self.assertRaisesRegex(ReshapeError, text):
                saved.load(want)

    def test_shards_that_overlap_are_refused(self):
        """Though together they have as many elements as are wanted."""
        parts = [self.noise([4]), self.noise([4])]
        saved = self.saved([8], [self.shard(part, (offset,), rank) for rank, (offset, part) in enumerate(zip((0, 2), parts))])
        for box in (None, ((1,), (4,)), ((2,), (2,))):
            with self.subTest(box), self.assertRaisesRegex(ReshapeError, r"x: its shards overlap from \[2\] to \[4\]: .* by rank="):
                saved.load({"x": box})
        self.assertEqual(parts[1].tobytes(), saved.load({"x": ((2,), (4,))}, rank=1)["x"].tobytes())
        self.assertEqual(parts[0][:2].tobytes(), saved.load({"x": ((0,), (2,))})["x"].tobytes())

    def test_types_that_numpy_lacks(self):
        words = self.noise([3], "uint16")
        saved = self.saved([3], [self.shard(words, (0,), 0)], "bfloat16")
        self.assertEqual(words.tobytes(), saved.load({"x": None})["x"].tobytes())

    @unittest.skipUnless(torch, "no torch")
    def test_they_come_as_what_they_are_to_torch(self):
        words = self.noise([4, 3], "uint16")
        saved = self.saved([4, 3], [self.shard(words, (0, 0), 0)], "bfloat16")
        for box in (None, ((0, 1), (4, 2))):  # the second has gaps
            tensor = saved.load({"x": box}, as_torch=True)["x"]
            self.assertEqual(torch.bfloat16, tensor.dtype)
            self.assertEqual(words[:, 1:].tobytes() if box else words.tobytes(), tensor.contiguous().view(torch.int16).numpy().tobytes())
        flat = self.saved([4], [self.shard(words[0], (0,), 0), self.shard(words[1], (0,), 1)], "bfloat16")
        self.assertEqual(torch.bfloat16, flat.load_flat("x", Buckets([5]), 0, 1, as_torch=True).dtype)

    @unittest.skipUnless(torch, "no torch")
    def test_to_torch_each_element_is_aligned(self):
        """It reads complex numbers by instructions that end the process where they are not."""
        for dtype in ("complex128", "complex64", "float64", "float16"):
            for _ in range(20):
                whole = self.noise([3, 4], dtype)
                saved = self.saved([3, 4], [self.shard(whole, (0, 0), 0)], dtype)
                for box in (None, ((0, 1), (3, 2))):
                    tensor = saved.load({"x": box}, as_torch=True)["x"]
                    self.assertEqual(0, tensor.data_ptr() % tensor.element_size(), dtype)
                    self.assertEqual((whole[:, 1:3] if box else whole).tobytes(), tensor.clone().numpy().tobytes())

    @unittest.skipUnless(torch and not hasattr(torch, "float8_e5m2"), "no torch that lacks it")
    def test_what_this_torch_does_not_know_is_said(self):
        saved = self.saved([3], [self.shard(self.noise([3], "uint8"), (0,), 0)], "float8_e5m2")
        with self.assertRaisesRegex(ReshapeError, "has no float8_e5m2: .* as_torch=False"):
            saved.load({"x": None}, as_torch=True)


@unittest.skipUnless(torch, "no torch")
class WrittenByRanks(unittest.TestCase):
    """What each rank gave, as lockstep._written finds it in the files."""

    def written(self, *states):
        from checkpoint_job import on_disk

        return on_disk(self.enterContext(tempfile.TemporaryDirectory()), *states)

    def test_each_rank_gets_its_own_back(self):
        def given(rank, rows):
            parameter = torch.zeros(rows, 2)
            optimizer = torch.optim.Adam([parameter], lr=0.5 + rank)
            parameter.grad = torch.ones(rows, 2)
            optimizer.step()
            optimizer.state[parameter][0] = torch.full((rows, 2), float(rank))
            return {"o": optimizer, "v": {"part": torch.arange(2.0 * rows).view(rows, 2), "rank": rank}}

        states = [given(rank, rows) for rank, rows in enumerate((3, 2, 0))]
        written = self.written(*states)
        for rank, state in enumerate(states):
            found, (expected,) = written.optimizer("o", rank), state["o"].state.values()
            self.assertEqual(expected.keys(), found["state"][0].keys())
            for key, tensor in expected.items():
                self.assertTrue(torch.equal(tensor, found["state"][0][key]), (rank, key))
            self.assertEqual((0.5 + rank, [0]), (found["param_groups"][0]["lr"], found["param_groups"][0]["params"]))
            value = written.value("v", rank)
            self.assertEqual((state["v"]["part"].tolist(), rank), (value["part"].tolist(), value["rank"]))

    def test_tensors_of_one_name_are_two(self):
        """Of ranks that have other shapes, too."""
        def given(size):
            return {"d": {1: torch.zeros(size), "1": torch.ones(3), "a.b": torch.zeros(2), "a": {"b": torch.ones(2)}, "\udc80": torch.ones(1)}}

        written = self.written(given(3), given(4))
        for rank, size in enumerate((3, 4)):
            value = written.value("d", rank)
            self.assertEqual(([0] * size, [1] * 3, [0] * 2, [1] * 2), tuple(item.tolist() for item in (value[1], value["1"], value["a.b"], value["a"]["b"])))
        self.assertEqual({"d.1", "d.1@1", "d.1#2", "d.a.b", "d.a.b#2", "d.\\udc80"}, written.tensors.keys())
        self.assertEqual([1] * 3, written.load({"d.1#2": None})["d.1#2"].tolist())

    def test_a_copy_has_memory_of_its_own_however_its_bytes_lie(self):
        order = torch.arange(6).to(torch.complex128).view(2, 3).t()
        written = self.written({"d": {"odd": torch.ones(3, dtype=torch.uint8), "z": order, "none": torch.zeros(0, 3)}})
        tensor = written.value("d")["z"]
        self.assertEqual((0, order.stride()), (tensor.data_ptr() % tensor.element_size(), tensor.stride()))
        self.assertTrue(torch.equal(order, tensor.clone()))
        self.assertEqual((0, 3), tuple(written.value("d")["none"].shape))

    def test_a_rank_without_tensors_may_come_without_an_empty_dict(self):
        """As torch.distributed.checkpoint gives it back."""
        from lockstep import _convert

        with mock.patch.object(_convert, "write_rank", lambda folder, rank, saved, client, write=_convert.write_rank:
                               write(folder, rank, {"meta": saved["meta"]}, client)):
            self.assertEqual([1], self.written({"v": [1]}).value("v"))

    def test_what_was_not_given_is_said(self):
        written = self.written({"v": [1], "w": [2]})
        from lockstep._tensors import CheckpointError

        with self.assertRaisesRegex(CheckpointError, "rank_00000.safetensors: this rank gave no 'x': it gave v, w"):
            written.value("x")
        with self.assertRaisesRegex(CheckpointError, "there is no rank 1, 1 ranks wrote it"):
            written.value("v", 1)


class FlatBuffers(Files):
    """The whole is what all ranks have without padding. Old and new world, sizes and multiples at random."""

    def random_buckets(self):
        sizes = [self.random.randint(0, 40) for _ in range(self.random.randint(1, 4))]
        return Buckets(sizes, self.random.choice([1, 1, 2, 8, 128]))

    def shards_of(self, whole, buckets, world):
        """As each rank of a world has them, cut by hand: bucket by bucket, padded with zeros, equal ranges."""
        ranks, start = [[] for _ in range(world)], 0
        for size in buckets.sizes:
            unit = math.lcm(world, buckets.multiple)
            padded = numpy.zeros(math.ceil(size / unit) * unit, whole.dtype)
            padded[:size] = whole[start : start + size]
            for rank, part in enumerate(numpy.split(padded, world)):
                ranks[rank].append(part)
            start += size
        return [numpy.concatenate(parts) for parts in ranks]

    def test_from_any_world_to_any_other(self):
        for case in range(CASES):
            buckets, old, new = self.random_buckets(), self.random.randint(1, 9), self.random.randint(1, 9)
            whole = self.noise([sum(buckets.sizes)])
            shards = [self.shard(array, (0,), rank) for rank, array in enumerate(self.shards_of(whole, buckets, old))]
            self.check(self.saved([buckets.shard_size(old)], shards), whole, buckets, new, (case, buckets.sizes, buckets.multiple, old, new))

    def test_from_one_tensor_without_padding(self):
        for case in range(CASES):
            buckets, new = self.random_buckets(), self.random.randint(1, 9)
            whole = self.noise([sum(buckets.sizes)])
            self.check(self.saved(whole.shape, [self.shard(whole, (0,), 0)]), whole, buckets, new, case)

    def test_from_other_buckets_of_the_same_elements(self):
        for case in range(CASES):
            old, world = self.random_buckets(), self.random.randint(1, 9)
            whole = self.noise([sum(old.sizes)])
            shards = [self.shard(array, (0,), rank) for rank, array in enumerate(self.shards_of(whole, old, world))]
            first = self.random.randint(0, whole.size)
            new = Buckets([first, whole.size - first], multiple=8)
            self.check(self.saved([old.shard_size(world)], shards), whole, new, self.random.randint(1, 9), case, old=old)

    def check(self, saved, whole, buckets, world, case, **more):
        expected = self.shards_of(whole, buckets, world)
        for rank in range(world):
            found = saved.load_flat("x", buckets, rank, world, **more)
            self.assertEqual(expected[rank].tobytes(), found.tobytes(), (case, rank))

    def test_shards_of_another_size_are_refused(self):
        saved = self.saved([5], [self.shard(self.noise([5]), (0,), rank) for rank in range(2)])
        with self.assertRaisesRegex(ReshapeError, r"rank 0 has \[5\] of it, expected \[4\] of each of 2 ranks for buckets of \[7\]"):
            saved.load_flat("x", Buckets([7]), 0, 3)
        with self.assertRaisesRegex(ReshapeError, "the old buckets have 7 elements, the new ones 6"):
            saved.load_flat("x", Buckets([6]), 0, 3, old=Buckets([7]))
        with self.assertRaisesRegex(ReshapeError, "rank 3 is not one of a world of 3"):
            saved.load_flat("x", Buckets([9]), 3, 3)
        with self.assertRaisesRegex(ReshapeError, "expected sizes of 0 or more"):
            Buckets([-1])


if __name__ == "__main__":
    unittest.main()
