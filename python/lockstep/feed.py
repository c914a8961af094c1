"""Batches of a data set that `lockstep feed serve` prepares once for all jobs of this machine that want them.

    loader = lockstep.feed.Loader("imagenet", job="a", transform=[RandomResizedCrop(224), Flip()], batch=256, seed=7)
    for batch in loader:                      # one epoch, or what is left of it
        images, labels = batch.torch()        # views of shared memory: (N, 3, H, W) uint8, channels last, and int64
    torch.save({"model": ..., "data": loader.state_dict()}, path)

What a batch holds is a pure function of data set, `where`, seed, epoch, position, batch and world: a job that comes back with the state of any
step, in a world of any size, goes on with the very next item. Rank and world are RANK and WORLD_SIZE of the environment unless they are given.
A batch is lent: its memory goes back to the service when no array or tensor made of it is left. A service that dies is waited for, and
the loader goes on where it was; errors are FeedError, one sentence each.
"""
import collections.abc
import functools
import importlib
import operator
import os
import sys
import threading
import time
import warnings

import numpy

from . import _feed_link, _feed_wait
from ._feed_ring import ALL_LENT, DAMAGED, FORKED, GONE, IDS_OFFSET, TOLD, FeedError, Slot, place_behind

_OF_STAGE = ("publish_model", "withdraw_model")  # lockstep.stage's, which only who wants them imports
__all__ = ["Batch", "CenterClip", "CenterCrop", "FeedError", "Flip", "Loader", "RandomClip", "RandomResizedCrop", *_OF_STAGE]


def __getattr__(name):
    if name in _OF_STAGE:
        return getattr(importlib.import_module("lockstep.stage"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_SLICE_MS = 100  # an interrupt is seen within it
_STATE_VERSION = 1


class RandomResizedCrop:
    """A random part of the image, scaled to `size` (pixels, or (height, width)): torchvision's rules, Pillow's antialiased bilinear."""

    def __init__(self, size, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)):
        self.recipe = {"crop": "random_resized", "size": _two(size), "scale": list(scale), "ratio": list(ratio)}


class CenterCrop:
    """The middle of the image, whose shorter side is scaled to `shorter` pixels first."""

    def __init__(self, size, shorter=256):
        self.recipe = {"crop": "center", "size": _two(size), "shorter": shorter}


class RandomClip:
    """`seconds` of a sound from anywhere in it, as (channels, frames) of `dtype` "float32", in [-1, 1) (floats of a WAV as they are), or "int16"; a shorter one is followed by zeros.
    `rate`: frames per second; nothing is resampled, so a sound of another rate is an error of its item. `channels`: 1 is the mean of all, else as many
    as the sounds have."""

    _crop = "random_clip"

    def __init__(self, seconds, rate, channels=1, dtype="float32"):
        self.recipe = {"crop": self._crop, "frames": round(seconds * rate), "rate": rate, "channels": channels, "dtype": dtype}


class CenterClip(RandomClip):
    """Likewise, of the middle."""

    _crop = "center_clip"


class Flip:
    """Mirrored, with chance `p`."""

    def __init__(self, p=0.5):
        self.recipe = {"flip": p}


def _two(size):
    try:
        height, width = size if isinstance(size, collections.abc.Iterable) else (size, size)
        return [operator.index(height), operator.index(width)]
    except (TypeError, ValueError):
        raise FeedError(f"transform: a size of {size!r}: expected whole pixels, or (height, width)") from None


def _split(transform):
    """(recipe, functions): what the service does, and then this process, to (N, H, W, 3) arrays."""
    recipe, functions = {}, []
    transform = [transform] if hasattr(transform, "recipe") or callable(transform) else transform
    for step in transform or [RandomResizedCrop(224), Flip()]:
        if hasattr(step, "recipe") and functions:
            raise FeedError(f"transform: {type(step).__name__} comes after a function of yours; the service's steps come first")
        if hasattr(step, "recipe"):
            _add(recipe, step)
        elif callable(step):
            functions.append(step)
        else:
            raise FeedError(f"transform: {step!r} is neither a step of lockstep.feed nor a function")
    if "crop" not in recipe:
        raise FeedError("transform: expected a RandomResizedCrop or a CenterCrop, which give all images one size, or a RandomClip or a "
                        "CenterClip for sounds")
    return {"flip": 0.0, **recipe}, functions


def _add(recipe, step):
    kind, = {"crop", "flip"} & step.recipe.keys()
    if kind in recipe:
        raise FeedError(f"transform: {type(step).__name__} is the second {kind}; expected one at most")
    recipe.update(step.recipe)
    if "flip" in recipe and "frames" in recipe:
        raise FeedError("transform: a clip of a sound can't be mirrored; leave out Flip")


_WIDER = {"<u2": "<i4", "<u4": "<i8"}  # for torch, which has no such numbers, or none to calculate with
_from_dlpack = None  # torch's, once it is wanted


def _import_torch():
    global _from_dlpack
    _from_dlpack = importlib.import_module("torch.utils.dlpack").from_dlpack
    return _from_dlpack


def _of_several_machines(world):
    return world > 1 and int(os.environ.get("LOCAL_WORLD_SIZE", 0)) != world


class Batch:
    """`images` (N, H, W, 3) uint8 or what your functions made of it, or you have put there (bfloat16 as uint16, but in torch()), `labels` (N,) int64, `ids` (N,) uint64: the items, in the job's order;
    `skipped`: ids of items that could not be prepared and are missing here (where all are, the loader raises FeedError); `epoch`, `step`, `position`, `last` (of the epoch); `filled_ns` (CLOCK_BOOTTIME: it was complete)."""

    def __init__(self, slot, link, functions):
        self._slot, self._link, self._raw = slot, link, None
        for function in functions:
            self.images = function(self.images)

    @functools.cached_property
    def images(self):
        self._raw = self._array((len(self), *self._link.shape), self._link.dtype, self._link.ring.payload_offset)
        return self._raw

    @functools.cached_property
    def labels(self):
        return self._array((len(self),), "<i8", self._link.ring.labels_offset)

    @property
    def ids(self):
        return self._array((len(self),), "<u8", IDS_OFFSET)

    @property
    def skipped(self):
        return self._array((self._head.skipped,), "<u8", IDS_OFFSET + 8 * len(self)).tolist()

    def _array(self, shape, dtype, offset):
        return numpy.ndarray(shape, dtype, self._memory, offset)

    @functools.cached_property
    def _memory(self):
        return self._slot.memory()

    @functools.cached_property
    def _head(self):
        return self._slot.fields()

    @property
    def epoch(self):
        return self._head.epoch

    @property
    def step(self):
        return self._head.step

    @property
    def position(self):
        return self._head.position

    @property
    def last(self):
        return bool(self._head.last)

    @property
    def filled_ns(self):
        return self._head.filled_ns

    def __len__(self):
        return self._head.items

    def __iter__(self):
        return iter((self.images, self.labels))

    def torch(self):
        """(images, labels) as tensors: the images as (N, 3, H, W) of the same memory, in the channels_last format. uint16
        (tokens of 2 bytes) come as int32 and uint32 as int64, copied, for torch can't calculate with them; FeedError for uint64 and long doubles."""
        from_dlpack, slot, link = _from_dlpack or _import_torch(), self._slot, self._link
        labels = slot.tensor(link.labels_view, from_dlpack)
        if self.__dict__.get("images", self._raw) is self._raw and link.images_view is not None:  # nobody has put others there
            return slot.tensor(link.images_view, from_dlpack), labels
        images = self._tensor_of(self.images, sys.modules["torch"])
        return (images.permute(0, 3, 1, 2) if images.ndim == 4 else images), labels

    def _tensor_of(self, images, torch):
        if isinstance(images, torch.Tensor):
            return images
        if self._link.bfloat16 and images.dtype == numpy.uint16:  # still its bits; torch has no uint16 before 2.3
            return torch.from_numpy(images.view(numpy.int16)).view(torch.bfloat16)
        try:
            return torch.from_numpy(images.astype(_WIDER[images.dtype.str]) if images.dtype.str in _WIDER else images)
        except TypeError:
            near = "float64" if images.dtype.kind == "f" else "int64"
            raise FeedError(f"torch has no numbers of {images.dtype}: take batch.images and convert them, such as torch.from_numpy(batch.images"
                            f".astype({near!r})), or have a function in `transform` do it") from None

    def __dlpack__(self, **how):
        return self.images.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.images.__dlpack_device__()

    def release(self):
        """Gives the memory back now. Arrays and tensors made of it show other items from then on."""
        self._slot.release()


class Loader:
    """One rank's batches, for one thread at a time. `where`: which items, None for all: range(0, 1000), {"labels": ["cat", "dog"]} (names, or the
    numbers that batches have as labels), or a boolean mask of the data set or array of ids. A last step that is not full is shared evenly, with an
    item for each rank at least, but where `batch` is 1, or the world has grown in the middle of an epoch: there `len(batch)` may be 0.
    `prefetch`: batches that the service may be ahead, held ones included. `drop_last`: leave out a last step that is not full. `beside`: begin
    where other jobs of this seed are, so that all is shared from the first step on; False: at the beginning of the order, whoever else is there,
    which is also what a job of several machines does whose services are not relays of one; it is of one machine if LOCAL_WORLD_SIZE, as torchrun
    sets it, is its world (srun and mpirun don't say: set it there). `wait_s`: how long to wait for a service that was
    killed, or a batch that doesn't come, until FeedError."""

    def __init__(self, dataset, *, job, batch, transform=None, where=None, seed=0, rank=None, world=None, prefetch=4, drop_last=False,
                 beside=True, wait_s=60.0, socket=None):
        recipe, self._functions = _split(transform)
        rank = int(os.environ.get("RANK", 0)) if rank is None else rank
        world = int(os.environ.get("WORLD_SIZE", 1)) if world is None else world
        self._wait_s = wait_s
        self._request = {"dataset": dataset, "job": job, "batch": batch, "recipe": recipe, "seed": seed, "rank": rank, "world": world,
                         "slots": prefetch, "drop_last": bool(drop_last), "alone": not beside,
                         "apart": _of_several_machines(world)}
        self._where = where
        beside = None if socket else _feed_link.socket_beside(dataset)
        self._socket = socket or beside or _feed_link.default_socket()
        self._link, self._ticket, self._begun, self._head, self._items = None, 0, (b"", 0), None, 0
        self._kept = None  # the slot of the next batch, if a function has raised on it
        self._taking = threading.Lock()
        self._connect(_feed_link.Deadline(wait_s), expected=beside is not None)
        if batch == 1 and rank == 0 and not drop_last and self._items % world:
            warnings.warn(f"lockstep.feed: batch 1: the last step of an epoch has {self._items % world} items for {world} ranks, so some get a "
                          "batch of none; drop_last=True leaves that step out", stacklevel=2)

    # ---- the epoch ----

    def __iter__(self):
        last = False
        while not last:
            batch = self.next_batch()
            last = batch.last
            yield batch
            del batch  # lent no longer than the caller keeps it

    def next_batch(self):
        """The next batch, of the next epoch if this one is over. FeedError if not one of its items could be prepared; the next call goes on behind it."""
        if not self._taking.acquire(blocking=False):
            raise FeedError("two threads take batches of this loader at once: take them in one, or give each a loader with a `job` of its own")
        try:
            slot, self._kept = self._kept or self._next_slot(), None
            if slot.has_lost_all():
                self._pass_over(slot)
            batch = self._worked_on(slot) if self._functions else Batch(slot, self._link, ())
            self._ticket += 1
            self._head = slot.head
            return batch
        finally:
            self._taking.release()

    def _pass_over(self, slot):
        self._ticket += 1
        self._head = slot.head
        fields, why = slot.fields(), slot.why()
        slot.release()
        raise FeedError(f"epoch {fields.epoch}, step {fields.step}: none of the {fields.skipped} items of this batch could be prepared. {why}. Mend what is "
                        "wrong, or leave such items out by `where`; `lockstep feed status` lists them")

    def _worked_on(self, slot):
        """By the script's functions. If one raises, the batch is still the next."""
        begin = time.monotonic()
        try:
            batch = Batch(slot, self._link, self._functions)
        except BaseException:
            self._kept = slot
            raise
        _feed_wait.functions_ran(self._request, time.monotonic() - begin)
        return batch

    @property
    def epoch(self):
        """Of the next batch."""
        return self._place()[1]

    def _place(self):
        """(state, epoch): where the job goes on."""
        return self._begun if self._head is None else place_behind(self._head)

    def __len__(self):
        """Steps of a whole epoch."""
        step = self._request["batch"] * self._request["world"]
        return self._items // step if self._request["drop_last"] else -(-self._items // step)

    def as_dataset(self):
        """A torch IterableDataset of what batch.torch() gives, one epoch at a time, for DataLoader(batch_size=None, num_workers=0)."""
        import torch.utils.data

        class Batches(torch.utils.data.IterableDataset):
            def __iter__(_):
                return map(Batch.torch, self)

            def __len__(_):
                return len(self)

        return Batches()

    def _next_slot(self):
        found = self._link and self._link.ring.take(self._ticket)
        if isinstance(found, Slot):
            return found
        wait = _feed_wait.Wait(self._request)
        try:
            return self._await_slot(wait)
        finally:
            wait.end()  # in vain, if it has not ended

    def _await_slot(self, wait):
        deadline = _feed_link.Deadline(self._wait_s)
        while True:
            if self._link is None:
                wait.gone()
                self._connect(deadline)
                wait.joined()
            found = self._link.ring.take(self._ticket, _SLICE_MS)
            if isinstance(found, Slot):
                wait.end(self._link.ring, found.index)
                return found
            self._judge(found, deadline)

    def _judge(self, why, deadline):
        """No batch: returns if it is to be tried again."""
        ring = self._link.ring
        if why == GONE:
            self._disconnect()
        elif why == TOLD:
            raise FeedError(self._link.complaint())
        elif why == FORKED:
            raise FeedError(f"this loader belongs to process {ring.pid}: make another one after a fork")
        elif why == ALL_LENT:
            raise FeedError(f"all {ring.slots} batches of the ring are kept by arrays or tensors of this process: copy what you keep, or raise prefetch")
        elif why == DAMAGED:
            raise FeedError(f"the slot of batch {self._ticket} holds another one: the service's ring is damaged; restart the service")
        elif deadline.over():
            raise FeedError(f"{self._socket}: the service has prepared no batch for {self._wait_s:g} s; `lockstep feed status` shows what it does")

    # ---- state ----

    def state_dict(self):
        """At most 1 KB of plain values: where this job goes on, in a world of any size. The same on all ranks after the same step."""
        return {"version": _STATE_VERSION, "stream": self._place()[0].decode()}

    def load_state_dict(self, state):
        """FeedError for a state that is damaged or another data set's; then the loader is where it was."""
        version = state.get("version") if isinstance(state, collections.abc.Mapping) else None
        if version != _STATE_VERSION:
            raise FeedError(f"the state has version {version!r}, expected {_STATE_VERSION}: is it of lockstep.feed?")
        if not isinstance(state.get("stream"), str):
            raise FeedError("the state has no text in \"stream\": is it of lockstep.feed?")
        before = self._place()
        self._disconnect()
        self._begun, self._head = (state["stream"].encode(), 0), None
        try:
            self._connect(_feed_link.Deadline(self._wait_s))
        except BaseException:
            self._begun = before  # where the next batch goes on
            raise

    def __reduce__(self):
        raise FeedError("a loader is this process's connection to the service and can't be copied or pickled: make another one, with a `job` of its "
                        "own, where it is wanted; state_dict() says where this one is")

    # ---- the service ----

    def _connect(self, deadline, expected=True):
        request = dict(self._request, state=self._place()[0].decode())
        self._link = _feed_link.join(self._socket, request, self._where, deadline, expected)
        self._ticket, self._begun, self._head, self._items = 0, self._link.place, None, self._link.items

    def _disconnect(self):
        if self._link is not None:
            self._link.close()
        self._link = self._kept = None

    def close(self):
        """The job has no more use for the service; batches it holds stay."""
        self._disconnect()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
