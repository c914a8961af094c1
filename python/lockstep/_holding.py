"""What all holders of a script's state (_state.py) share: how tensors are taken out of what pickle gets, and how they come back."""
import collections
import sys

import torch

from . import _client
from ._containers import ATOMS, readable, replaced, simplified
from ._tensors import PLAIN, CheckpointError, Layout, is_tensor, parts

_PICKLED_AS = "lockstep._state"  # where checkpoints look for the classes that are in them


def name_of(path):
    return ".".join(map(str, path))


class _Slot:
    """Stands in the picklable rest for the tensor of this number, of a subclass for one with these attributes."""

    __slots__ = ("index", "kind", "attributes")
    __module__ = _PICKLED_AS

    def __init__(self, index, kind=None, attributes=None):
        self.index, self.kind, self.attributes = index, kind, attributes

    def __reduce__(self):
        return _Slot, (self.index,) if self.kind is None else (self.index, self.kind, self.attributes)

    def made_of(self, tensor):
        if self.kind is not None:
            tensor = tensor.as_subclass(self.kind)
            vars(tensor).update(self.attributes)
        return tensor


class _Apart:
    """Stands in the picklable rest of a dict or list for what has a holder of this name."""

    __slots__ = ("name",)
    __module__ = _PICKLED_AS

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return _Apart, (self.name,)

    def __repr__(self):
        return f"<{self.name}>"


def take_out(value, path, names, tensors, leave=lambda item, path: item):
    """`value` with each tensor in it replaced by a _Slot; the tensors and their names are appended, each once, by the first of its places. leave(item,
    path): what stands for another item."""
    slots = {}

    def take(item, path):
        if not is_tensor(item):
            return leave(item, path)
        slot = slots.get(id(item))
        if slot is None:
            name = name_of(path)
            names.append((name, None))
            tensors.append(item if type(item) in PLAIN else _whole(item, name))
            number = len(tensors) - 1
            slot = slots[id(item)] = _slot_of(item, number)
        return slot

    return replaced(value, [path], take, readable)


def _slot_of(tensor, number):
    """A subclass is kept where pickle can name it and it has nothing but simple attributes: a module may hang on one, or a lock."""
    kind, own = type(tensor), getattr(tensor, "__dict__", {})
    if kind in PLAIN or getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is not kind or any(type(value) not in ATOMS for value in own.values()):
        return _Slot(number)
    return _Slot(number, kind, own)


def _whole(item, name):
    here = parts(item)
    if len(here) != 1 or here[0][0] is not None:
        raise CheckpointError(f"{name} is a sharded tensor inside a state_dict(): give Checkpoint the module or the optimizer itself")
    return here[0][1]


def put_back(value, tensors, apart=None):
    """The reverse: the _Slots of each number become a tensor of their own, and each _Apart what has this name in `apart`, if that is given."""
    made = {}

    def put(item, _):
        if isinstance(item, _Slot):
            if item.index not in made:
                made[item.index] = item.made_of(tensors[item.index])
            return made[item.index]
        if apart is None or not isinstance(item, _Apart):
            return item
        if item.name not in apart:
            raise CheckpointError(f"the checkpoint was written with an object of its own at {item.name}, where this script has none: "
                                  "restore with the script that wrote it, or start the run afresh")
        return apart[item.name]

    return replaced(value, [], put, lambda container: container)


def form_of(tensor):
    """As Layout says it."""
    return f"{str(tensor.dtype)[len('torch.'):]} of shape {tuple(tensor.shape)}"


def owned_memory(view, device="cpu"):
    """A copy of a view into shared memory, with the view's strides."""
    return torch.empty_strided(view.shape, view.stride(), dtype=view.dtype, device=device).copy_(view)


class _Copies:
    """Of saved pairs (layout, view), each made when it is asked for, on the device that the tensor had."""

    def __init__(self, saved):
        self._saved = saved

    def __getitem__(self, index):
        layout, view = self._saved[index]
        return owned_memory(view, _device_of(layout))


def _device_of(layout):
    """Where there is no such GPU, this rank's current one."""
    if layout.device == "cpu" or not torch.cuda.is_available():
        return "cpu"
    return "cuda" if layout.index is None or layout.index >= torch.cuda.device_count() else f"cuda:{layout.index}"


OUT_OF_MEMORY = getattr(torch.cuda, "OutOfMemoryError", RuntimeError)  # since torch 1.13


def with_copies(name, rest, saved, apart=None):
    """The rest with copies of the saved tensors. All on the CPU where the GPU has no room: objects that copy them into their own need none there, and
    those made so far would leave none to work in."""
    try:
        return put_back(rest, _Copies(saved), apart)
    except OUT_OF_MEMORY as error:
        why = str(error).partition(" (")[0].partition("\n")[0]  # and not what torch has reserved
    _client.warn(f"the tensors in {name!r} come back on the CPU, for the GPU has no room for them beside those that are there: {why}")
    return put_back(rest, [owned_memory(view) for _, view in saved], apart)


def copy_into(holder, names, tensors, saved):
    """Writes saved pairs (layout, view) into `tensors`, matched by name and place. All are compared before one is written."""
    named = collections.defaultdict(list)  # shards of one tensor have one name
    for layout, view in saved:
        named[layout.name].append((layout, view))
    _check_names(holder, {name for name, _ in names}, named.keys())
    found = [_same(Layout(name, tensor, place), named[name]) for (name, place), tensor in zip(names, tensors)]
    with torch.no_grad():
        for tensor, view in zip(tensors, found):
            tensor.detach().copy_(view)


def _check_names(holder, here, saved):
    if here == saved:
        return
    missing, unexpected = sorted(here - saved), sorted(saved - here)
    detail = f"the checkpoint lacks {missing[0]}" if missing else f"the checkpoint also has {unexpected[0]}"
    raise CheckpointError(f"{holder!r} has {len(here)} tensors in this script and {len(saved)} in the checkpoint ({detail}): "
                          "restore with the model that wrote it, or start the run afresh")


def _same(here, saved):
    for layout, view in saved:
        if layout.same_content(here):
            return view
    raise CheckpointError(f"{here.name} is {saved[0][0]} in the checkpoint but {here} in this script: "
                          "restore with the model and sharding that wrote it, or start the run afresh")


class EagerHolder:
    """Copied in step(): forward, or the script itself, may write it at any time."""

    simplified = staticmethod(simplified)

    def __init__(self, name, value):
        self.name = name
        self._value = value
        self._names = []

    def names(self):
        return self._names

    def lazy(self, index):
        return False
