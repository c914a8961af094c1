"""The part of a checkpoint that one rank of a world of any size needs, read out of the files of the ranks that wrote it.

    saved = lockstep.reshape.open("/data/checkpoints")                # of Lockstep, torch.distributed.checkpoint, Megatron, torch.save
    arrays = saved.load({"model.weight": ((1024, 0), (512, 4096)),    # offsets and sizes of a box of the whole tensor
                         "model.bias": None})                         # all of it
    cut = lockstep.reshape.Buckets([10_000, 7_000], multiple=128)     # flat buffers that data-parallel ranks share by equal ranges
    mine = saved.load_flat("optimizer.exp_avg", cut, rank=3, world=6)

Files are mapped: only the bytes that are wanted are read. What lies in one piece comes as a view of the file, which can't be written; all
else as an array of its own, and for torch what is not aligned to its elements there, too. numpy has no bfloat16, complex32 and float8: they come as
uint16, uint32 and uint8, and with as_torch=True as what they are.
Where the files are is what `lockstep checkpoint inspect --json` says, of the program beside this package, $LOCKSTEP_BINARY or on PATH.
"""
import builtins
import json
import math
import mmap
import os
import shutil
import subprocess

import numpy

__all__ = ["Buckets", "ReshapeError", "Saved", "open"]

_STAND_INS = {"bfloat16": "uint16", "complex32": "uint32", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "float8_e4m3fnuz": "uint8",
              "float8_e5m2fnuz": "uint8", "float8_e8m0fnu": "uint8"}


class ReshapeError(Exception):
    """What is wrong, where, what was expected, what to do."""


def open(path):
    """What a checkpoint holds; reads no tensor."""
    return Saved(inspect(path))


def inspect(path):
    """The document of `lockstep checkpoint inspect --json`."""
    answer = subprocess.run([_binary(), "checkpoint", "inspect", os.fspath(path), "--json"], capture_output=True, text=True)
    if answer.returncode not in (0, 1):  # 1: a tensor lacks a part or has one twice, which whoever wants that part is told
        raise ReshapeError(answer.stderr.strip().removeprefix("lockstep: "))
    return json.loads(answer.stdout)


def _binary():
    named = os.environ.get("LOCKSTEP_BINARY")
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../bin/lockstep")  # share/lockstep/python/lockstep
    found = named or (beside if os.path.exists(beside) else shutil.which("lockstep"))
    if not found:
        raise ReshapeError("the program `lockstep` is not on PATH: name it in LOCKSTEP_BINARY")
    return found


class Saved:
    """A checkpoint: `tensors` is {name: Tensor}, `values` {name: plain value}, `world_size` how many ranks wrote it (None: not known)."""

    def __init__(self, report):
        """report: the document of `lockstep checkpoint inspect --json`."""
        self.kind, self.step, self.world_size = report["kind"], report["step"], report["world_size"]
        self.tensors = {entry["name"]: Tensor(entry, report["folder"]) for entry in report["tensors"]}
        self.values = {entry["name"]: entry["value"] for entry in report["values"]}
        self.passed_over = report["passed_over"]  # sentences: what could not be read

    def __getitem__(self, name):
        if name not in self.tensors:
            raise ReshapeError(f"the checkpoint has no tensor {name}: it has {', '.join(sorted(self.tensors)[:5])} ...")
        return self.tensors[name]

    def load(self, want, rank=None, as_torch=False):
        """{name: array} for want = {name: None or (offsets, sizes)}. Where several ranks have the same box, their copies are compared, and it is an
        error if they differ; `rank` names the one whose copy is meant."""
        return {name: _given(self[name].read(box, rank), self[name].dtype, as_torch) for name, box in want.items()}

    def load_flat(self, name, buckets, rank, world, old=None, as_torch=False):
        """The shard of `rank` of a new `world`, with its padding (zeros), of flat buffers that ranks share by `buckets`' rule. In the checkpoint each old
        rank has its shard under this name, by the rule of `old` where the same elements lay in other buckets; or one tensor has all of it without
        padding (as Megatron's distrib_optim.pt does)."""
        tensor, old = self[name], old or buckets
        if sum(old.sizes) != sum(buckets.sizes):
            raise ReshapeError(f"{name}: the old buckets have {sum(old.sizes)} elements, the new ones {sum(buckets.sizes)}: expected the same")
        pieces = [_zeros(tensor, length) if begin is None else tensor.flat(old, begin, length) for begin, length in buckets.pieces(rank, world)]
        whole = pieces[0] if len(pieces) == 1 else numpy.concatenate(pieces) if pieces else _zeros(tensor, 0)
        return _given(whole, tensor.dtype, as_torch)


def _zeros(tensor, length):
    return numpy.zeros(length, tensor.array_dtype)


def _given(array, dtype, as_torch):
    if not as_torch:
        return array
    import warnings

    import torch

    if not hasattr(torch, dtype):
        raise ReshapeError(f"torch {torch.__version__} has no {dtype}: expected one that has, or as_torch=False, which gives a numpy array")
    if array.ctypes.data % array.itemsize:  # torch may read it by instructions that take no such address
        array = array.copy()
    bits = array.view(_STAND_INS[dtype][1:]) if dtype in _STAND_INS else array  # torch knows no uint16 and uint32 before 2.3
    with warnings.catch_warnings():  # that a view of the file can't be written
        warnings.simplefilter("ignore")
        tensor = torch.from_numpy(bits)
    return tensor.view(getattr(torch, dtype)) if dtype in _STAND_INS else tensor


class Buckets:
    """Flat buffers, one behind another, each padded at its end to a multiple of lcm(ranks, multiple) and shared by the ranks in equal ranges: ZeRO's
    partitions, and the buckets of Megatron's distributed optimizer (multiple=128 there). The world changes the padding and the ranges, not the elements."""

    def __init__(self, sizes, multiple=1):
        """sizes: elements of each buffer without padding."""
        self.sizes, self.multiple = [int(size) for size in sizes], int(multiple)
        if self.multiple < 1 or any(size < 0 for size in self.sizes):
            raise ReshapeError(f"buckets of {sizes} elements, padded to multiples of {multiple}: expected sizes of 0 or more and a multiple of 1 or more")

    def share(self, size, world):
        """How much of a buffer of `size` elements each of `world` ranks has."""
        unit = math.lcm(world, self.multiple)
        return (size + unit - 1) // unit * unit // world

    def shard_size(self, world):
        """Elements of a rank's whole shard, padding included."""
        return sum(self.share(size, world) for size in self.sizes)

    def pieces(self, rank, world):
        """The shard of a rank: (begin in all elements without padding, length) in turn; begin None: padding."""
        if not 0 <= rank < world:
            raise ReshapeError(f"rank {rank} is not one of a world of {world}")
        start, found = 0, []
        for size in self.sizes:
            share = self.share(size, world)
            begin = min(rank * share, size)
            length = min(share, size - begin)
            found += [(start + begin, length)] * (length > 0) + [(None, share - length)] * (share > length)
            start += size
        return found


class Tensor:
    """One tensor of a checkpoint: `dtype` as torch names it, `shape`, and `shards`."""

    def __init__(self, entry, folder):
        self.name, self.dtype, self.shape = entry["name"], entry["dtype"], tuple(entry["shape"])
        self.array_dtype = numpy.dtype(_STAND_INS.get(self.dtype, self.dtype))
        self.shards = entry["shards"]
        self._folder = folder

    def read(self, box=None, rank=None):
        offsets, sizes = self._checked(box)
        sources = self._sources(offsets, sizes, rank)
        if 0 in sizes:
            return numpy.empty(sizes, self.array_dtype)
        if len(sources) == 1 and sources[0][1:] == (offsets, sizes):
            return self._agreed(*sources[0])
        self._check_apart([source[1:] for source in sources])
        array = numpy.empty(sizes, self.array_dtype)
        filled = 0
        for copies, begin, count in sources:
            array[_slices(begin, count, offsets)] = self._agreed(copies, begin, count)
            filled += math.prod(count)
        if filled != array.size:
            raise ReshapeError(f"{self.name}: of the {array.size} elements from {list(offsets)} on, {filled} are in the checkpoint's shards")
        return array

    def flat(self, buckets, begin, length):
        """`length` elements from `begin` on, of all elements without padding."""
        total = sum(buckets.sizes)
        if self._is_whole(total):
            return self.read(((begin,), (length,)))
        shards = self._rank_shards(buckets)
        found = []
        while length > 0:
            rank, at, run = _holder_of(buckets, begin, len(shards))
            run = min(run, length)
            found.append(self._view(shards[rank], (0,), (run,), first=at))
            begin, length = begin + run, length - run
        return found[0] if len(found) == 1 else numpy.concatenate(found)

    def _is_whole(self, total):
        return self.shape == (total,) and len({tuple(shard["offsets"]) for shard in self.shards}) == len(self.shards)

    def _rank_shards(self, buckets):
        """Every old rank's, in order."""
        shards = {shard["rank"]: shard for shard in self.shards}
        expected = buckets.shard_size(len(shards))
        for rank in range(len(shards)):
            sizes = shards[rank]["sizes"] if rank in shards else None
            if sizes != [expected]:
                raise ReshapeError(f"{self.name}: rank {rank} has {sizes} of it, expected [{expected}] of each of {len(shards)} ranks for buckets of "
                                   f"{buckets.sizes} padded to multiples of {buckets.multiple}")
        return shards

    def _checked(self, box):
        offsets, sizes = ((0,) * len(self.shape), self.shape) if box is None else (tuple(box[0]), tuple(box[1]))
        fits = len(offsets) == len(sizes) == len(self.shape) and all(
            first >= 0 and size >= 0 and first + size <= length for first, size, length in zip(offsets, sizes, self.shape))
        if not fits:
            raise ReshapeError(f"{self.name} has shape {list(self.shape)}: it has no box of {list(sizes)} at {list(offsets)}")
        return offsets, sizes

    def _sources(self, offsets, sizes, rank):
        """(copies, begin, sizes) of what the shards have of a box; copies are shards of one box."""
        boxes = {}
        for shard in self.shards:
            if rank is None or shard["rank"] in (rank, None):
                boxes.setdefault((tuple(shard["offsets"]), tuple(shard["sizes"])), []).append(shard)
        found = []
        for (first, size), copies in boxes.items():
            begin = tuple(map(max, first, offsets))
            end = tuple(map(min, map(sum, zip(first, size)), map(sum, zip(offsets, sizes))))
            if all(low < high for low, high in zip(begin, end)):
                found.append((copies, begin, tuple(high - low for low, high in zip(begin, end))))
        return found

    def _check_apart(self, boxes):
        """Of what overlaps nobody knows which is right."""
        begins = numpy.array([begin for begin, _ in boxes])
        ends = begins + numpy.array([count for _, count in boxes])
        for one in range(1, len(boxes)):
            meet = ((begins[:one] < ends[one]) & (begins[one] < ends[:one])).all(axis=1)
            if meet.any():
                other = meet.argmax()
                raise ReshapeError(f"{self.name}: its shards overlap from {numpy.maximum(begins[one], begins[other]).tolist()} to "
                                   f"{numpy.minimum(ends[one], ends[other]).tolist()}: expected each element in one of them; read the part of one rank by rank=")

    def _agreed(self, copies, begin, count):
        """Of several ranks' copies the first, if all are alike."""
        first, *others = [self._view(shard, tuple(b - o for b, o in zip(begin, shard["offsets"])), count) for shard in copies]
        for shard, other in zip(copies[1:], others):
            if not _same_bits(first, other):
                raise ReshapeError(f"{self.name} of rank {copies[0]['rank']} and of rank {shard['rank']} differ: they are no copies of one; name one by rank=, or "
                                   "read what ranks share by ranges with load_flat")
        return first

    def _view(self, shard, begin, count, first=0):
        """Of the file, from an element of the shard on."""
        item = self.array_dtype.itemsize
        strides = tuple(stride * item for stride in shard["strides"])
        at = shard["at"] + first * item + sum(map(int.__mul__, begin, strides))
        return numpy.ndarray(count, self.array_dtype, buffer=_mapped(os.path.join(self._folder, shard["file"])), offset=at, strides=strides)


def _same_bits(a, b):
    if a.itemsize > 8:  # complex128
        return a.tobytes() == b.tobytes()
    bits = f"u{a.itemsize}"
    return numpy.array_equal(a.view(bits), b.view(bits))


def _holder_of(buckets, begin, world):
    """(old rank, place in its shard, elements that follow it there) of an element, counted without padding."""
    before = 0
    for size in buckets.sizes:
        share = buckets.share(size, world)
        if begin < size:
            rank, inside = divmod(begin, share)
            return rank, before + inside, min(share - inside, size - begin)
        begin -= size
        before += share
    raise ReshapeError(f"element {begin} lies behind all buckets")


def _slices(begin, count, offsets):
    return tuple(slice(b - o, b - o + c) for b, c, o in zip(begin, count, offsets))


_maps = {}  # of the files that were read last


def _mapped(path):
    """The file's bytes, which stay valid for whoever has a view of them."""
    status = os.stat(path)
    key = (path, status.st_ino, status.st_mtime_ns, status.st_size)
    if key not in _maps:
        while len(_maps) >= 64:
            del _maps[next(iter(_maps))]
        with builtins.open(path, "rb") as file:
            _maps[key] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _maps[key]
