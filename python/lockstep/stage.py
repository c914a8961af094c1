"""Steps of a simulation that runs on this machine, as a data set that grows; and a model of the trainer's for the simulation to ask.

    stream = lockstep.stage.Stream("heat", timeout_s=60)          # waits for the simulation (lockstep/stage/stage.h) to open it
    for step in stream:                                           # until the simulation closes it
        field = step.tensor()                                     # [ranks, *shape]; a view of shared memory, no copy
        ...
    batch = stream.sample(32, seed=7)                             # of what is visible now: the latest k, the reservoir, or all of the spill file
    lockstep.stage.publish_model("closure", net)                  # torch.nn.Sequential of Linear, ReLU, Tanh, Sigmoid

A step is held for as long as anything views it: a trainer that keeps views of more steps than the stream has room for keeps the simulation
waiting, within its limit. numpy views can't be written; torch knows no such views, and what is written into one of its, others see.
A child of fork(), such as a worker of DataLoader, opens the stream for itself.
"""
import atexit
import contextlib
import ctypes
import math
import operator
import os
import sys
import threading
import weakref

import numpy

from . import _stage
from ._stage import Absent, EndOfStream, StageError, Timeout, WriterDied

__all__ = ["Absent", "EndOfStream", "Spill", "StageError", "Stream", "Timeout", "WriterDied", "Writer", "publish_model", "withdraw_model"]


_readers = weakref.WeakSet()


@atexit.register
def _leave_all():
    for reader in list(_readers):
        reader.leave()


class _Attached:
    """The reader's handle, which outlives the Stream until the last view is gone and the last call has returned: what it maps must not vanish
    under one."""

    def __init__(self, name, shard, shards, timeout_s):
        self._handle, self._pid = ctypes.c_void_p(), os.getpid()
        self._held, self._closed = 0, False  # views and calls
        self._calls, self._counting = threading.Lock(), threading.RLock()  # neither a release nor close() waits for a next() of another thread
        _stage.check(_stage.waits("ls_stage_attach", name.encode(), shard, shards, timeout_s, ctypes.byref(self._handle)))
        _readers.add(self)

    def _require_open(self):
        if self._closed:
            raise StageError("the stream is closed")
        if self._elsewhere():
            raise StageError(f"the stream was opened by process {self._pid}, before a fork: open it here too")

    @contextlib.contextmanager
    def _call(self):
        self._require_open()
        with self._calls:
            with self._counting:
                self._require_open()
                self._held += 1
            try:
                yield
            finally:
                self._let_go()

    def look(self):
        facts = _stage.Facts()
        with self._call():
            _stage.check(_stage.library().ls_stage_look(self._handle, ctypes.byref(facts)))
        return facts

    def list(self, room):
        steps = (ctypes.c_int64 * room)()
        with self._call():
            count = _stage.library().ls_stage_list(self._handle, steps, room)
            _stage.check(_stage.REFUSED if count < 0 else _stage.OK)
        return steps[:min(count, room)]

    def take(self, name, argument, size):
        """(the step that this call gives, its memory as a buffer). The step is released when nothing views it any more."""
        at = _stage.StepAt()
        with self._call():
            _stage.check(_stage.waits(name, self._handle, argument, ctypes.byref(at)))
            buffer = (ctypes.c_char * size).from_address(at.memory)
            with self._counting:
                self._held += 1
            weakref.finalize(buffer, self._release, at).atexit = False  # the interpreter ends before what reads a view does
        return at, buffer

    def _elsewhere(self):
        """In a child of fork() nothing is ours, and a lock may be held by a thread that is not there."""
        return os.getpid() != self._pid

    def _release(self, at):
        if self._elsewhere():
            return
        with self._counting:
            _stage.library().ls_stage_release(self._handle, ctypes.byref(at))
            self._let_go()

    def _let_go(self):
        with self._counting:
            self._held -= 1
            self._detach_if_last()

    def _detach_if_last(self):
        if self._closed and self._held == 0:
            _stage.library().ls_stage_detach(self._handle)

    def close(self):
        if self._elsewhere():
            return
        with self._counting:
            if not self._closed:
                self._closed = True
                self._detach_if_last()

    def leave(self):
        """At the end of the process, where views and threads that wait for a step may be left: these keep the memory, and the writer takes
        the steps back when the process is gone."""
        if self._elsewhere():
            return
        self.close()
        with self._counting:
            if self._held > 0:
                self._held += 1  # never to be detached
                _stage.library().ls_stage_leave(self._handle)


class Step:
    """One step. step: the simulation's number; index: how many became visible before; array: [ranks, *shape], read-only."""

    def __init__(self, step, index, array, writable):
        self.step, self.index, self.array, self._writable = step, index, array, writable

    def tensor(self):
        """The same memory as a torch tensor. Not to be written."""
        import torch

        return torch.from_numpy(self._writable)


class Stream:
    """A stream of a running simulation. Of `shards` readers each gets every `shards`-th step. dtype, shape: what is expected of a step, if given.
    timeout_s: for the stream to be there; step_timeout_s: for each step, where one is iterated over."""

    def __init__(self, name, shard=0, shards=1, timeout_s=10.0, dtype=None, shape=None, step_timeout_s=600.0):
        self._attached = _Attached(name, shard, shards, timeout_s)
        weakref.finalize(self, self._attached.close).atexit = False  # _leave_all() is for that
        facts = self._attached.look()
        self.name, self.ranks = name, facts.ranks
        self.dtype, self.part_shape = numpy.dtype(_stage.DTYPE_NAMES[facts.dtype]), tuple(facts.shape[:facts.ndim])
        self.shape, self.policy, self.k = (self.ranks, *self.part_shape), _stage.POLICY_NAMES[facts.policy], facts.k
        self._stride, self._spill, self._step_timeout = facts.part_stride, None, step_timeout_s
        self._expect(dtype, shape)

    def _expect(self, dtype, shape):
        wanted = (numpy.dtype(dtype or self.dtype), tuple(shape or self.shape))
        if wanted != (self.dtype, self.shape):
            self.close()
            raise StageError(f"stream {self.name} has {self.dtype} {list(self.shape)} ([ranks, ...]): expected {wanted[0]} {list(wanted[1])}")

    def counters(self):
        """{name: number}, of stage.h."""
        facts = self._attached.look()
        return {name: getattr(facts, name) for name in _stage.Facts.COUNTERS}

    def _take(self, name, argument):
        at, buffer = self._attached.take(name, argument, self._stride * self.ranks)
        return Step(at.step, at.index, *_views(buffer, self.dtype, self.ranks, self.part_shape, self._stride))

    def next(self, timeout_s=60.0):
        """The next step that this reader has not had. Raises Timeout, EndOfStream or WriterDied."""
        return self._take("ls_stage_next", timeout_s)

    def get(self, step):
        """This step, if it is visible now. Raises Absent."""
        return self._take("ls_stage_get", step)

    def steps(self):
        """The numbers of the steps that are in memory now, in order."""
        return self._attached.list(1 << 17)

    def __len__(self):
        """How many steps sample() draws from now."""
        return self._attached.look().spilled if self.policy == "replay" else len(self.steps())

    def __iter__(self):
        while True:
            try:
                yield self.next(self._step_timeout)
            except EndOfStream:
                return

    def sample(self, count, seed):
        """`count` steps, each with the same chance, with replacement; the draw is a function of seed and of what is visible. Of policy replay: from
        all steps so far, out of the spill file."""
        draws = numpy.random.Generator(numpy.random.Philox(key=seed))
        if self.policy == "replay":
            spill = self._spilled()
            _require(len(spill), self.name)
            return [spill[i] for i in draws.integers(len(spill), size=count)]
        found = []
        while len(found) < count:  # a step may be retired between the list and the draw
            steps = self.steps()
            _require(len(steps), self.name)
            try:
                found.append(self.get(steps[int(draws.integers(len(steps)))]))
            except Absent:
                continue
        return found

    def _spilled(self):
        facts = self._attached.look()
        if self._spill is None:
            self._spill = Spill(facts.spill.decode())
        self._spill.grow(facts.spilled)
        return self._spill

    def as_dataset(self):
        """A torch IterableDataset of tensors, for DataLoader(num_workers=0)."""
        import torch.utils.data

        class Steps(torch.utils.data.IterableDataset):
            def __iter__(_):
                return (step.tensor() for step in self)

        return Steps()

    def close(self):
        """What is still viewed stays mapped until it is not. A call that another thread is in returns as if nothing were; its next one fails."""
        self._attached.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _require(count, name):
    if count == 0:
        raise Absent(f"stream {name} has no step yet: call next() first, which waits for one")


def _views(buffer, dtype, ranks, part_shape, stride):
    """(read-only, writable) arrays [ranks, *part_shape] of a buffer in which the parts lie `stride` apart."""
    inner = [dtype.itemsize * math.prod(part_shape[i + 1:]) for i in range(len(part_shape))]
    writable = numpy.ndarray((ranks, *part_shape), dtype, buffer, 0, (stride, *inner))
    array = writable.view()
    array.flags.writeable = False
    return array, writable


class Spill:
    """A spill file (docs/formats/spill.md), of a stream that runs or one that has ended: spill[i] is the Step of index i, in memory of its own, whose
    CRC is verified. What a writer that was killed left half written is not in it."""

    HEAD, RECORD = 4096, 64
    _head = numpy.dtype([("magic", "S8"), ("version", "<u4"), ("_", "<u4"), ("dtype", "<i4"), ("ndim", "<i4"), ("ranks", "<i4"), ("_1", "<i4"),
                         ("shape", "<i8", 8), ("part_bytes", "<u8"), ("part_stride", "<u8"), ("record_stride", "<u8")])
    _record = numpy.dtype([("magic", "S8"), ("step", "<i8"), ("index", "<u8"), ("crc", "<u4"), ("_", "<u4")])

    def __init__(self, path):
        self.path, self._count = os.fspath(path), 0
        try:
            self._file = open(self.path, "rb", buffering=0)
        except OSError as error:
            raise StageError(f"spill file {self.path}: {error.strerror}") from None
        weakref.finalize(self, self._file.close).atexit = False
        page = self._read(0, self.HEAD)
        head = numpy.frombuffer(page, self._head, 1)[0] if len(page) == self.HEAD else None
        if head is None or head["magic"] != b"LSSPIL01":
            raise StageError(f"{self.path} is no spill file")
        if head["version"] not in (1, 2):
            raise StageError(f"spill file {self.path} has version {head['version']}: this library reads 1 and 2")
        self._covers_place = head["version"] == 2  # the CRC: step and index, too
        self._take_head(head)
        self.grow(self._complete())

    def _take_head(self, head):
        """All of it follows from the first four, so a head that is damaged shows."""
        dtype, ndim, ranks = (int(head[name]) for name in ("dtype", "ndim", "ranks"))
        shape = tuple(int(length) for length in head["shape"])
        known = dtype in _stage.DTYPE_NAMES and 1 <= ndim <= len(shape) and ranks >= 1 and min(shape[:ndim]) >= 1 and not any(shape[ndim:])
        if known:
            self.dtype, self.ranks, self.part_shape = numpy.dtype(_stage.DTYPE_NAMES[dtype]), ranks, shape[:ndim]
            part = self.dtype.itemsize * math.prod(self.part_shape)
            self._part = _round_up(part)
            self._stride = _round_up(self.RECORD + self._part * ranks)
        if not known or (part, self._part, self._stride) != tuple(int(head[name]) for name in ("part_bytes", "part_stride", "record_stride")):
            raise StageError(f"spill file {self.path} is damaged: its head has dtype {dtype}, {ndim} dimensions, shape {list(shape)}, {ranks} ranks, and "
                             f"{head['part_bytes']}, {head['part_stride']} and {head['record_stride']} bytes of a part, to the next, and of a record")

    def _read(self, at, size):
        """What there is of it. Not mapped: a file that is cut short meanwhile would kill whoever looks at it."""
        memory = bytearray(size)
        try:
            read = os.preadv(self._file.fileno(), [memory], at)
            while 0 < read < size:
                more = os.preadv(self._file.fileno(), [memoryview(memory)[read:]], at + read)
                if more == 0:
                    break
                read += more
        except OSError as error:
            raise StageError(f"spill file {self.path}: {error.strerror}") from None
        return memory if read == size else memory[:read]

    def _complete(self):
        size = os.fstat(self._file.fileno()).st_size - self.HEAD - self.RECORD - self._part * self.ranks
        count = 0 if size < 0 else size // self._stride + 1
        while count > 0:  # only what was being written when the writer was killed is not whole
            record = self._record_of(self._read(self.HEAD + (count - 1) * self._stride, self.RECORD))
            if record is not None and record["magic"] == b"SSSTEP01" and record["index"] == count - 1:
                break
            count -= 1
        return count

    def _record_of(self, content):
        return numpy.frombuffer(content, self._record, 1)[0] if len(content) >= self.RECORD else None

    def _crc_of(self, content):
        """What it covers is put together: step and index right before the parts, where there are zeros."""
        first = self.RECORD
        if self._covers_place:
            first -= 16
            content[first:self.RECORD] = content[8:24]
        size = len(content) - first
        return _stage.library().ls_stage_crc32c((ctypes.c_char * size).from_buffer(content, first), size)

    def grow(self, count):
        """More records are whole by now."""
        self._count = max(self._count, count)

    def __len__(self):
        return self._count

    def __getitem__(self, i):
        if not 0 <= i < self._count:
            raise IndexError(f"spill file {self.path} has {self._count} steps: no index {i}")
        i, size = int(i), self._part * self.ranks
        content = self._read(self.HEAD + i * self._stride, self.RECORD + size)
        if len(content) < self.RECORD + size:
            raise StageError(f"spill file {self.path}: index {i} is not there any more: the file has been cut short")
        record, parts = self._record_of(content).copy(), (ctypes.c_char * size).from_buffer(content, self.RECORD)
        if record["index"] != i or self._crc_of(content) != record["crc"]:
            raise StageError(f"spill file {self.path}: step {record['step']}, index {i}, is damaged: its CRC or its index does not match")
        return Step(int(record["step"]), i, *_views(parts, self.dtype, self.ranks, self.part_shape, self._part))


def _round_up(size):
    return -(-size // 64) * 64


class Writer:
    """One rank of a simulation that is written in Python; stage.h says what the arguments mean.

        with Writer("heat", "float32", (64, 64), policy="latest", k=8) as writer:
            writer.put(step, field)                     # or: writer.reserve(step)[:] = ...; writer.commit()
    """

    def __init__(self, name, dtype, shape, rank=0, ranks=1, policy="lossless", k=8, spare=0, readers=0, seed=0, spill=None, timeout_s=10.0):
        self._dtype, self._shape, self._timeout = numpy.dtype(dtype), tuple(shape), timeout_s
        for what, value, known in (("dtype", self._dtype.name, _stage.DTYPES), ("policy", policy, _stage.POLICIES)):
            if value not in known:
                raise StageError(f"stream {name}: no {what} {value!r}: expected one of {', '.join(known)}")
        for what, value in (("rank", rank), ("ranks", ranks), ("k", k), ("spare", spare), ("readers", readers)):
            _require_count(f"stream {name}: {what}", value)
        how = _stage.Options(_stage.POLICIES[policy], k, spare, readers, seed, os.fspath(spill).encode() if spill else None)
        lengths, self._handle = (ctypes.c_int64 * len(self._shape))(*self._shape), ctypes.c_void_p()
        self._step, self._late = None, False  # the last that was reserved; whether its commit could not have the lock
        _stage.check(_stage.library().ls_stage_open(name.encode(), rank, ranks, _stage.DTYPES[self._dtype.name], len(self._shape), lengths,
                                                    ctypes.byref(how), timeout_s, ctypes.byref(self._handle)))

    def reserve(self, step, timeout_s=None):
        """The memory of this rank's part, to be written until commit()."""
        memory = ctypes.c_void_p()
        _stage.check(_stage.waits("ls_stage_reserve", self._handle, step, self._timeout if timeout_s is None else timeout_s, ctypes.byref(memory)))
        self._step, self._late = step, False
        size = self._dtype.itemsize * int(numpy.prod(self._shape))
        return numpy.frombuffer((ctypes.c_char * size).from_address(memory.value), self._dtype).reshape(self._shape)

    def commit(self):
        """Raises Timeout where a process that was stopped has the stream locked: the step may be committed again, or abandoned."""
        result = _stage.library().ls_stage_commit(self._handle)
        self._late = result == _stage.TIMEOUT
        _stage.check(result)

    def abandon(self):
        """Instead of commit(): the step will not become visible."""
        _stage.check(_stage.library().ls_stage_abandon(self._handle))
        self._late = False

    def put(self, step, array, timeout_s=None):
        """reserve() and commit(). Values may be rounded, and are changed in no other way: StageError for floats where the stream has integers, and for
        integers beyond its own. A step whose commit raised Timeout is committed first; if it is this one, that is all."""
        array = numpy.asarray(array)
        if array.shape != self._shape:
            raise StageError(f"step {step} has shape {list(array.shape)}: expected {list(self._shape)}")
        if array.dtype != self._dtype and not _fits(array, self._dtype):
            raise StageError(f"step {step} has values of {array.dtype} that {self._dtype}, which the stream has, would change: convert them, such as by "
                             f"array.astype({self._dtype.name!r}), or open the stream with another dtype")
        if self._late:
            self.commit()
            if step == self._step:
                return
        memory = self.reserve(step, timeout_s)
        try:
            memory[...] = array
        except BaseException:
            self.abandon()
            raise
        self.commit()

    def close(self, linger_s=0.0):
        handle, self._handle = self._handle, ctypes.c_void_p()
        if not handle:
            return
        try:
            _stage.check(_stage.waits("ls_stage_linger", handle, linger_s))
        except BaseException:
            _stage.library().ls_stage_close(handle, 0.0)
            raise
        _stage.check(_stage.library().ls_stage_close(handle, 0.0))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _require_count(what, value):
    """What ctypes would take modulo 2**32."""
    try:
        right = 0 <= operator.index(value) < 1 << 31
    except TypeError:
        right = False
    if not right:
        raise StageError(f"{what} is {value!r}: expected a whole number from 0 to {(1 << 31) - 1}")


def _fits(array, dtype):
    """Whether it does, but for rounding."""
    if array.dtype.kind not in "iu" or dtype.kind not in "iu" or numpy.can_cast(array.dtype, dtype):
        return numpy.can_cast(array.dtype, dtype, "same_kind")
    limits = numpy.iinfo(dtype)
    return array.size == 0 or (limits.min <= int(array.min()) and int(array.max()) <= limits.max)


# ---- the model ----

_published = {}  # (pid, name): (handle, shapes)


def publish_model(name, model):
    """Makes the weights what ls_infer() of lockstep/stage/infer.h computes with from its next ls_infer_refresh() on; returns the number of the
    publication. model: a torch.nn.Sequential of Linear, ReLU, Tanh, Sigmoid, as torch has them and without hooks; or [(weight [outputs, inputs], bias
    or None, activation)]. The name is this process's until it ends, or withdraw_model()."""
    layers = [_layer(i, *layer) for i, layer in enumerate(_layers(model))]
    if not layers:
        raise StageError(f"model {name} has no layer: expected at least one")
    weights = numpy.concatenate([part.ravel() for weight, bias, _ in layers for part in (weight, bias)])
    shapes = [(weight.shape[1], weight.shape[0], activation) for weight, _, activation in layers]
    key = (os.getpid(), name)
    handle, known = _published.get(key) or (_open_model(name, shapes), shapes)
    if shapes != known:
        raise StageError(f"model {name} was published with other layers: withdraw it first, or publish under another name")
    try:
        _stage.check(_stage.library().ls_model_publish(handle, weights.ctypes.data, weights.size))
    except StageError:
        if key not in _published:  # the name is free for other layers
            _stage.library().ls_model_close(handle)
        raise
    if key not in _published:
        if not any(pid == os.getpid() for pid, _ in _published):
            atexit.register(_withdraw_all)
        _published[key] = handle, shapes
    return _stage.library().ls_model_generation(handle)


def _open_model(name, shapes):
    handle = ctypes.c_void_p()
    layers = (_stage.Dense * len(shapes))(*(_stage.Dense(*shape) for shape in shapes))
    _stage.check(_stage.library().ls_model_open(name.encode(), len(shapes), layers, ctypes.byref(handle)))
    return handle


def withdraw_model(name):
    """Gives the name up. Who asks the model goes on with the last weights."""
    handle, _ = _published.pop((os.getpid(), name), (None, None))
    if handle is not None:
        _stage.check(_stage.library().ls_model_close(handle))


def _withdraw_all():
    for pid, name in list(_published):
        if pid == os.getpid():
            withdraw_model(name)


def _layers(model):
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return _layers_of(model, torch.nn)
    try:
        return [(weight, bias, activation) for weight, bias, activation in model]
    except (TypeError, ValueError):
        raise StageError(f"the model is {_kind(model)}: expected a torch.nn.Sequential, or [(weight, bias, activation)]") from None


def _layers_of(model, nn):
    """What is published is what the weights alone say: so the modules must be torch's own, which compute just that."""
    if not isinstance(model, nn.Sequential):
        raise StageError(f"the model is {_kind(model)}: expected a torch.nn.Sequential, or [(weight, bias, activation)]")
    if type(model).forward is not nn.Sequential.forward:
        raise StageError(f"the model is {_kind(model)}, which has a forward() of its own: {_INSTEAD}")
    _refuse_changed("the model", model)
    found, activations = [], {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
    for i, module in enumerate(model):
        kind = type(module)
        if kind is nn.Linear:
            found.append([module.weight, module.bias, "none"])
        elif kind in activations and found and found[-1][2] == "none":
            found[-1][2] = activations[kind]
        elif kind is not nn.Identity:
            raise StageError(f"module {i} of the model is {_kind(module)}: expected Linear of torch.nn, each followed by at most one of ReLU, Tanh, Sigmoid")
        _refuse_changed(f"module {i} of the model", module)
    return found


_INSTEAD = "publish a torch.nn.Sequential of what it computes, or [(weight, bias, activation)]"


def _refuse_changed(what, module):
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        raise StageError(f"{what} has hooks, as weight_norm, spectral_norm and prune make them, or a forward() that was put there: its weights alone "
                         f"don't say what it computes; take them off, or {_INSTEAD}")


def _kind(thing):
    kind = type(thing)
    return f"a {kind.__name__}" if kind.__module__.startswith(("torch.nn.", "builtins")) else f"a {kind.__module__}.{kind.__qualname__}"


def _layer(i, weight, bias, activation):
    if activation not in _stage.ACTIVATIONS:
        raise StageError(f"layer {i} has activation {activation!r}: expected one of {', '.join(_stage.ACTIVATIONS)}")
    weight = _floats(weight)
    bias = numpy.zeros(len(weight), "float32") if bias is None else _floats(bias)
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise StageError(f"layer {i} has weight {list(weight.shape)} and bias {list(bias.shape)}: expected [outputs, inputs] and [outputs]")
    return weight, bias, _stage.ACTIVATIONS[activation]


def _floats(tensor):
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().float().cpu().numpy()  # NumPy has no bfloat16
    return numpy.ascontiguousarray(tensor, "float32")
