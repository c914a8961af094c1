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
import importlib
import os
import sys

import numpy

from . import _feed_link, _feed_wait
from ._feed_ring import GONE, IDS_OFFSET, TOLD, FeedError

__all__ = ["Batch", "CenterCrop", "FeedError", "Flip", "Loader", "RandomResizedCrop"]

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


class Flip:
    """Mirrored, with chance `p`."""

    def __init__(self, p=0.5):
        self.recipe = {"flip": p}


def _two(size):
    return [size, size] if isinstance(size, int) else list(size)


def _split(transform):
    """(recipe, functions): what the service does, and then this process, to (N, H, W, 3) arrays."""
    recipe, functions = {}, []
    for step in transform or [RandomResizedCrop(224), Flip()]:
        if hasattr(step, "recipe") and functions:
            raise FeedError(f"transform: {type(step).__name__} comes after a function of yours; the service's steps come first")
        if hasattr(step, "recipe"):
            recipe.update(step.recipe)
        elif callable(step):
            functions.append(step)
        else:
            raise FeedError(f"transform: {step!r} is neither a step of lockstep.feed nor a function")
    if "crop" not in recipe:
        raise FeedError("transform: expected a RandomResizedCrop or a CenterCrop, which give all images one size")
    return {"flip": 0.0, **recipe}, functions


def _of_several_machines(world):
    return world > 1 and int(os.environ.get("LOCAL_WORLD_SIZE", 0)) != world


class Batch:
    """`images` (N, H, W, 3) uint8 or what your functions made of it, `labels` (N,) int64, `ids` (N,) uint64: the items, in the job's order;
    `skipped`: ids of items that could not be prepared and are missing here; `epoch`, `step`, `position`, `last` (of the epoch); `filled_ns` (CLOCK_BOOTTIME: it was complete)."""

    def __init__(self, slot, link, functions):
        self._slot, self._memory = slot, slot.memory()
        self.epoch, self.step, self.position, self.last = slot.epoch, slot.step, slot.position, bool(slot.last)
        self.filled_ns = slot.filled_ns
        self.images = self._array((slot.items, *link.shape), link.dtype, link.ring.payload_offset)
        self.labels = self._array((slot.items,), "<i8", link.ring.labels_offset)
        for function in functions:
            self.images = function(self.images)

    def _array(self, shape, dtype, offset):
        return numpy.ndarray(shape, dtype, self._memory, offset)

    @property
    def ids(self):
        return self._array((self._slot.items,), "<u8", IDS_OFFSET)

    @property
    def skipped(self):
        return self._array((self._slot.skipped,), "<u8", IDS_OFFSET + 8 * self._slot.items).tolist()

    def __len__(self):
        return self._slot.items

    def __iter__(self):
        return iter((self.images, self.labels))

    def torch(self):
        """(images, labels) as tensors: the images as (N, 3, H, W) of the same memory, in the channels_last format."""
        torch = sys.modules.get("torch") or importlib.import_module("torch")
        images = self.images if isinstance(self.images, torch.Tensor) else torch.from_numpy(self.images)
        return (images.permute(0, 3, 1, 2) if images.ndim == 4 else images), torch.from_numpy(self.labels)

    def __dlpack__(self, **how):
        return self.images.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.images.__dlpack_device__()

    def release(self):
        """Gives the memory back now. Arrays and tensors made of it show other items from then on."""
        self._slot.release()


class Loader:
    """One rank's batches. `where`: which items, None for all: range(0, 1000), {"labels": ["cat", "dog"]}, or a boolean mask or array of ids.
    `prefetch`: batches that the service may be ahead, held ones included. `drop_last`: leave out a last step that is not full. `beside`: begin
    where other jobs of this seed are, so that all is shared from the first step on; False: at the beginning of the order, whoever else is there,
    which is also what a job of several machines does. `wait_s`: how long to wait for a service that is gone, or a batch that doesn't come, until
    FeedError."""

    def __init__(self, dataset, *, job, batch, transform=None, where=None, seed=0, rank=None, world=None, prefetch=4, drop_last=False,
                 beside=True, wait_s=60.0, socket=None):
        recipe, self._functions = _split(transform)
        rank = int(os.environ.get("RANK", 0)) if rank is None else rank
        world = int(os.environ.get("WORLD_SIZE", 1)) if world is None else world
        self._wait_s = wait_s
        self._request = {"dataset": dataset, "job": job, "batch": batch, "recipe": recipe, "seed": seed, "rank": rank, "world": world,
                         "slots": prefetch, "drop_last": bool(drop_last), "alone": not beside or _of_several_machines(world)}
        self._where = where
        beside = None if socket else _feed_link.socket_beside(dataset)
        self._socket = socket or beside or _feed_link.default_socket()
        self._link, self._ticket, self._state = None, 0, b""
        self._connect(_feed_link.Deadline(wait_s) if beside else None)

    # ---- the epoch ----

    def __iter__(self):
        last = False
        while not last:
            batch = self.next_batch()
            last = batch.last
            yield batch
            del batch  # lent no longer than the caller keeps it

    def next_batch(self):
        """The next batch, of the next epoch if this one is over."""
        slot = self._next_slot()
        self._ticket += 1
        self._state, self.epoch = slot.state, slot.epoch + bool(slot.last)
        return Batch(slot, self._link, self._functions)

    def __len__(self):
        """Steps of a whole epoch."""
        step = self._request["batch"] * self._request["world"]
        return self._link.items // step if self._request["drop_last"] else -(-self._link.items // step)

    def _next_slot(self):
        wait = _feed_wait.Wait(self._request)
        try:
            return self._await_slot(wait)
        finally:
            wait.end()  # in vain, if it has not ended

    def _await_slot(self, wait):
        deadline = None  # of a batch that isn't there
        while True:
            if self._link is None:
                wait.gone()
                self._connect(deadline or _feed_link.Deadline(self._wait_s))
                wait.joined()
            ring = self._link.ring
            if ring.pid != os.getpid():
                raise FeedError(f"this loader belongs to process {ring.pid}: make another one after a fork")
            if len(ring.lent) == ring.slots:
                raise FeedError(f"all {ring.slots} batches of the ring are kept by arrays or tensors of this process: copy what you keep, or "
                                "raise prefetch")
            found = ring.wait(self._ticket, _SLICE_MS if deadline else 0)
            if found >= 0:
                wait.end(ring, found)
                return ring.take(found, self._ticket)
            wait.begin()
            deadline = deadline or _feed_link.Deadline(self._wait_s)
            if found == GONE:
                self._disconnect()
            elif found == TOLD:
                raise FeedError(self._link.complaint())
            elif deadline.over():
                raise FeedError(f"{self._socket}: the service has prepared no batch for {self._wait_s:g} s; `lockstep feed status` shows what "
                                "it does")

    # ---- state ----

    def state_dict(self):
        """At most 1 KB of plain values: where this job goes on, in a world of any size. The same on all ranks after the same step."""
        return {"version": _STATE_VERSION, "stream": self._state.partition(b"\0")[0].decode()}

    def load_state_dict(self, state):
        if state.get("version") != _STATE_VERSION:
            raise FeedError(f"the state has version {state.get('version')!r}, expected {_STATE_VERSION}: is it of lockstep.feed?")
        self._disconnect()
        self._state = state["stream"].encode()
        self._connect()

    # ---- the service ----

    def _connect(self, deadline=None):
        """With a deadline, waits for a service that is not there."""
        request = dict(self._request, state=self._state.partition(b"\0")[0].decode())
        self._link = _feed_link.join(self._socket, request, self._where, deadline)
        self._ticket, self._state, self.epoch = 0, self._link.state, self._link.epoch

    def _disconnect(self):
        if self._link is not None:
            self._link.close()
        self._link = None

    def close(self):
        """The job has no more use for the service; batches it holds stay."""
        self._disconnect()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
