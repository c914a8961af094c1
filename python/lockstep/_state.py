"""What a training script hands to Checkpoint, each kind behind one small class.

A holder's capture() returns (stamp, tensors, rest): the tensors of this moment in an order that the stamp fixes, and the picklable
rest. While the stamp stays equal, names() stays equal. `lazy(i)` says whether tensor i is written by an optimizer only, so that it
may be copied beside the next forward and backward pass. restore() takes back what capture() gave: pairs (Layout, view into shared
memory) in capture's order, and the rest. simplified() is asked of a rest that pickle can't take: (another for it, what is lost with that).
"""
import collections
import hashlib
import itertools
import os
import random
import struct
import sys

import torch

from . import _client
from ._containers import ATOMS, readable, refusal, replaced, simplified
from ._tensors import PLAIN, CheckpointError, Layout, is_tensor, parts


def holders_of(state, owned):
    """{name: holder} of all that a script gives. What its dicts and lists hold of modules, optimizers and the like has holders of its own, named by
    their paths. `owned`: ids of the parameters that some given optimizer writes; filled later, asked when it is needed."""
    holders = {name: holder_of(name, value, owned) for name, value in state.items()}
    held = set(map(id, state.values()))
    for holder in list(holders.values()):
        for name, value in holder.apart.items() if isinstance(holder, PlainHolder) else ():
            if id(value) in held:
                continue
            if name in holders:
                raise CheckpointError(f"Checkpoint: {name!r} is the name of two things, one of which is in {holder.name!r}: give the other another name")
            held.add(id(value))
            holders[name] = holder_of(name, value, owned)
    return holders


def has_state(value):
    """Whether what it holds can come back in place. Of a module that keeps all in plain attributes, as a metric may, it can't."""
    if isinstance(value, type):
        return False
    if isinstance(value, torch.Generator):
        return True
    if isinstance(value, torch.nn.Module):
        return any(map(_keeps, value.modules()))
    try:
        return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
    except Exception:  # whatever the __getattr__ of a script's class raises
        return False


def _keeps(module):
    """Its state_dict() is not asked: one of FSDP gathers all parameters, and a script's own may refuse."""
    if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
        return True
    buffers = [tensor for key, tensor in module._buffers.items() if key not in module._non_persistent_buffers_set]
    return any(tensor is not None for tensor in (*module._parameters.values(), *buffers))


def holder_of(name, value, owned):
    if isinstance(value, torch.nn.Module):
        return ModuleHolder(name, value, owned)
    if isinstance(value, torch.optim.Optimizer):
        return OptimizerHolder(name, value)
    if is_tensor(value):
        return TensorHolder(name, value)
    if isinstance(value, torch.Generator):
        return GeneratorHolder(name, value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return StateDictHolder(name, value)
    if isinstance(value, (dict, list)):
        return PlainHolder(name, value)
    raise CheckpointError(f"Checkpoint: {name!r} is a {type(value).__name__}; expected a module, an optimizer, a tensor, a generator, an "
                          "object with state_dict() and load_state_dict(), or a dict or list of plain values: wrap it in one")


def _name_of(path):
    return ".".join(map(str, path))


class _Slot:
    """Stands in the picklable rest for the tensor of this number."""

    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index

    def __reduce__(self):
        return _Slot, (self.index,)


class _Apart:
    """Stands in the picklable rest of a dict or list for what has a holder of this name."""

    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return _Apart, (self.name,)

    def __repr__(self):
        return f"<{self.name}>"


def _take_out(value, path, names, tensors, leave=lambda item, path: item):
    """`value` with each tensor in it replaced by a _Slot; the tensors and their names are appended. leave(item, path): what stands for another item."""
    def take(item, path):
        if not is_tensor(item):
            return leave(item, path)
        name = _name_of(path)
        (place, part), *others = parts(item)
        if place is not None or others:
            raise CheckpointError(f"{name} is a sharded tensor inside a state_dict(): give Checkpoint the module or the optimizer itself")
        names.append((name, None))
        tensors.append(part)
        return _Slot(len(tensors) - 1)

    return replaced(value, [path], take, readable)


def _put_back(value, tensors, apart=None):
    """The reverse: each _Slot becomes a tensor of its own, and each _Apart what has this name in `apart`, if that is given."""
    def put(item, _):
        if isinstance(item, _Slot):
            return tensors[item.index]
        if apart is None or not isinstance(item, _Apart):
            return item
        if item.name not in apart:
            raise CheckpointError(f"the checkpoint was written with an object of its own at {item.name}, where this script has none: "
                                  "restore with the script that wrote it, or start the run afresh")
        return apart[item.name]

    return replaced(value, [], put, lambda container: container)


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


_OUT_OF_MEMORY = getattr(torch.cuda, "OutOfMemoryError", RuntimeError)  # since torch 1.13


def _with_copies(name, rest, saved, apart=None):
    """The rest with copies of the saved tensors. All on the CPU where the GPU has no room: objects that copy them into their own need none there, and
    those made so far would leave none to work in."""
    try:
        return _put_back(rest, _Copies(saved), apart)
    except _OUT_OF_MEMORY as error:
        why = str(error).partition(" (")[0].partition("\n")[0]  # and not what torch has reserved
    _client.warn(f"the tensors in {name!r} come back on the CPU, for the GPU has no room for them beside those that are there: {why}")
    return _put_back(rest, [owned_memory(view) for _, view in saved], apart)


def copy_into(holder, names, tensors, saved):
    """Writes saved pairs (layout, view) into `tensors`, matched by name and place. All are compared before one is written."""
    found = {(layout.name, layout.place): (layout, view) for layout, view in saved}
    named = collections.defaultdict(list)  # shards of one tensor have one name
    for layout, _ in saved:
        named[layout.name].append(layout)
    _check_names(holder, {name for name, _ in names}, named.keys())
    for (name, place), tensor in zip(names, tensors):
        _check_same(Layout(name, tensor, place), named[name])
    with torch.no_grad():
        for key, tensor in zip(names, tensors):
            tensor.detach().copy_(found[key][1])


def _check_names(holder, here, saved):
    if here == saved:
        return
    missing, unexpected = sorted(here - saved), sorted(saved - here)
    detail = f"the checkpoint lacks {missing[0]}" if missing else f"the checkpoint also has {unexpected[0]}"
    raise CheckpointError(f"{holder!r} has {len(here)} tensors in this script and {len(saved)} in the checkpoint ({detail}): "
                          "restore with the model that wrote it, or start the run afresh")


def _check_same(here, saved):
    if not any(layout.same_content(here) for layout in saved):
        raise CheckpointError(f"{here.name} is {saved[0]} in the checkpoint but {here} in this script: "
                              "restore with the model and sharding that wrote it, or start the run afresh")


class ModuleHolder:
    """Parameters and persistent buffers of a module tree, each tensor once however often it is used."""

    simplified = staticmethod(simplified)

    def __init__(self, name, module, owned):
        self.name = name
        self.module, self._owned = module, owned
        self._stamp = None
        self._fully_sharded = [part for part in module.modules() if hasattr(part, "reshard") and hasattr(part, "unshard")]

    def capture(self):
        self._gather_nothing()
        stamp = self._shape_of_tree()
        if stamp != self._stamp:
            self._walk()
            stamp = self._stamp = self._shape_of_tree()
        if self._sharded:
            tensors = [part for folder, key in self._places for _, part in parts(folder[key])]
        else:
            tensors = [folder[key] for folder, key in self._places]
        rest = {prefix: module.get_extra_state() for prefix, module in self._extra}
        return stamp, tensors, rest

    def names(self):
        return self._names

    def lazy(self, index):
        return self._ids[index] in self._owned

    def wholes(self):
        """(name, tensor) of the sharded ones that may be copied late: a write to the whole doesn't show in the version of the part."""
        if not self._sharded:
            return []
        return [(name, folder[key]) for (folder, key), name in zip(self._places, self._wholes) if id(folder[key]) in self._owned]

    def whole_tensors(self):
        """(name, tensor) of all, a sharded one as a whole."""
        self.capture()
        return [(name, folder[key]) for (folder, key), name in zip(self._places, self._wholes)]

    def _gather_nothing(self):
        """After an evaluation FSDP2 leaves parameters gathered, as tensors other than those that it trains. The next forward gathers anew."""
        for module in self._fully_sharded:
            module.reshard()

    def _shape_of_tree(self):
        """Equal as long as the same modules have the same keys: cheap enough for every step."""
        stamp = []
        for module in self._modules if self._stamp is not None else ():
            for folder in (module._parameters, module._buffers):
                stamp.extend(folder.keys())  # that of a scripted module can't be iterated itself
                stamp.extend([tensor is None for tensor in folder.values()])
            stamp.extend(map(id, module._modules.values()))
        return stamp

    def _walk(self):
        named = list(self.module.named_modules())
        self._modules = [module for _, module in named]
        self._extra = [(prefix, module) for prefix, module in named
                       if type(module).get_extra_state is not torch.nn.Module.get_extra_state]
        self._places, self._wholes, self._names, self._ids, self._sharded, self._stamp = [], [], [], [], False, []
        seen = set()
        for prefix, module in named:
            for folder, skipped in ((module._parameters, ()), (module._buffers, module._non_persistent_buffers_set)):
                for key, tensor in folder.items():
                    if tensor is not None and key not in skipped and id(tensor) not in seen:
                        seen.add(id(tensor))
                        self._add(folder, key, f"{self.name}.{prefix}.{key}" if prefix else f"{self.name}.{key}")

    def _add(self, folder, key, name):
        self._places.append((folder, key))
        self._wholes.append(name)
        for place, _ in parts(folder[key]):
            self._sharded = self._sharded or place is not None
            self._names.append((name, place))
            self._ids.append(id(folder[key]))

    def restore(self, saved, rest):
        shapes = {layout.name: layout.shape for layout, _ in saved}
        _, tensors, _ = self.capture()
        for (name, _), tensor in zip(self._names, tensors):
            if torch.nn.parameter.is_lazy(tensor) and name in shapes:
                tensor.materialize(shapes[name])  # as the first forward pass would
        copy_into(self.name, self._names, tensors, saved)
        for prefix, module in self._extra:
            if prefix in rest:
                module.set_extra_state(rest[prefix])


def _is_zero(optimizer):
    """torch's ZeroRedundancyOptimizer: by its name, for its module imports much."""
    return any((kind.__name__, kind.__module__.split(".")[0]) == ("ZeroRedundancyOptimizer", "torch") for kind in type(optimizer).__mro__)


def _overrides(optimizer):
    return type(optimizer).state_dict is not torch.optim.Optimizer.state_dict and not _is_zero(optimizer)


def _parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def numbered(groups):
    """Groups as state_dict() has them, of some that have the count of their parameters only."""
    found, begin = [], 0
    for group in groups:
        found.append(dict(group, params=list(range(begin, begin + group["params"]))))
        begin += group["params"]
    return found


class OptimizerHolder:
    """State tensors by parameter number; param_groups and all other values in the rest. Exact: nothing is cast on the way.

    What its state_dict() has beside both, as PostLocalSGDOptimizer's, goes into the rest as `extra`, its tensors copied in step().
    A ZeroRedundancyOptimizer writes all parameters, but the state of this rank's share is in its `optim`, as are their numbers.
    """

    def __init__(self, name, optimizer):
        self.name = name
        self.optimizer = optimizer
        if getattr(optimizer, "_overlap_with_ddp", False):
            raise CheckpointError(f"{name!r} is a ZeroRedundancyOptimizer with overlap_with_ddp, whose state is made during training: give "
                                  "Checkpoint one without")
        self.stateful = optimizer.optim if _is_zero(optimizer) else optimizer
        self._asks = _overrides(optimizer)  # its state_dict()
        self._keys, self._nested, self._lazy = (), (), 0

    def parameters(self):
        return _parameters_of(self.optimizer)

    def capture(self):
        keys, tensors, others = [], [], []
        state = self.stateful.state
        for number, parameter in enumerate(_parameters_of(self.stateful)):
            for key, value in state.get(parameter, {}).items():
                if type(value) in PLAIN:
                    keys.append((number, key, None))
                    tensors.append(value)
                elif hasattr(value, "_local_tensor"):
                    (place, local), = parts(value)
                    keys.append((number, key, place))
                    tensors.append(local)
                else:
                    others.append((number, key, value))
        groups = [{**group, "params": len(own["params"])} for group, own in zip(self.optimizer.param_groups, self.stateful.param_groups)]
        unbound = [(key, value) for key, value in state.items() if not isinstance(key, torch.Tensor)]  # of no parameter: a count of steps, say
        nested = []
        rest = _take_out({"direct": len(keys), "groups": groups, "others": others, "unbound": unbound}, self.name, nested, tensors)
        lazy = len(tensors)
        rest["extra"] = _take_out(self.extra(), self.name, nested, tensors)
        self._keys, self._nested, self._lazy = keys, nested, lazy
        return [keys, nested, lazy], tensors, rest

    def simplified(self, rest):
        """What belongs to no parameter may be anything, a hook say: without what pickle can't take."""
        rest, said = simplified(rest)
        kept = [refusal(pair) is None for pair in rest["unbound"]]
        lost = [repr(key) for (key, _), keeps in zip(rest["unbound"], kept) if not keeps]
        rest["unbound"] = list(itertools.compress(rest["unbound"], kept))
        return rest, f"{', '.join(lost)} of its state is left out" if lost else said

    def names(self):
        return [(f"{self.name}.{number}.{key}", place) for number, key, place in self._keys] + self._nested

    def lazy(self, index):
        return index < self._lazy

    def restore(self, saved, rest):
        self._check_groups([group["params"] for group in rest["groups"]])
        rest = _with_copies(self.name, rest, saved)
        parameters = _parameters_of(self.stateful)
        state = [{} for _ in parameters]
        for layout, view in saved[: rest["direct"]]:
            number, key = layout.name[len(self.name) + 1 :].split(".", 1)
            state[int(number)][key] = self._rebuild(layout, view, parameters[int(number)])
        for number, key, value in rest["others"]:
            state[number][key] = value
        self.stateful.state.clear()
        self.stateful.state.update((p, entry) for p, entry in zip(parameters, state) if entry)
        self.stateful.state.update(rest.get("unbound", ()))
        for groups in (self.stateful.param_groups, self.optimizer.param_groups):
            for group, before in zip(groups, rest["groups"]):
                group.update((key, value) for key, value in before.items() if key != "params")
        if rest.get("extra"):  # not there in older ones
            self.load_extra(rest["extra"])

    def load_extra(self, extra):
        """By its load_state_dict(), with the state of now: which that casts and copies, and which is as it was afterwards."""
        optimizer = self.optimizer
        state, groups = dict(optimizer.state), [dict(group) for group in optimizer.param_groups]
        shared = [(one, key, vars(one)[key]) for one in (optimizer, *vars(optimizer).values()) if isinstance(one, torch.optim.Optimizer)
                  for key in ("state", "param_groups") if vars(one).get(key) is getattr(optimizer, key)]
        number_of = {parameter: number for number, parameter in enumerate(self.parameters())}
        given = {number_of.get(key, key): dict(entry) if isinstance(entry, dict) else entry for key, entry in state.items()}
        optimizer.load_state_dict({"state": given, "param_groups": numbered([{**group, "params": len(group["params"])} for group in groups]), **extra})
        for one, key, value in shared:  # a wrapper and what it wraps have one state, and schedulers know the groups
            setattr(one, key, value)
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, before in zip(optimizer.param_groups, groups):
            group.update(before)

    def extra(self):
        """What its state_dict() has beside `state` and `param_groups`."""
        if not self._asks:
            return {}
        try:
            whole = self.optimizer.state_dict()
        except Exception as error:  # it wants to be gathered first, say
            self._asks = False
            _client.warn(f"{self.name!r}: state_dict() of this {type(self.optimizer).__name__} failed ({error}): its `state` and `param_groups` are "
                         "saved, and nothing that it may have beside them")
            return {}
        count = self._check_state(whole)
        extra = {key: value for key, value in whole.items() if key not in ("state", "param_groups")}
        self._asks = bool(extra) or count == 0
        return extra

    def _check_state(self, whole):
        """One that hands on the state_dict() of another, and has no state itself, would lose all at a restart. How many have state in it."""
        count = len(whole.get("state", ()))
        if count > len(self.stateful.state):
            raise CheckpointError(f"{self.name!r} is a {type(self.optimizer).__name__} whose state_dict() has the state of {count} parameters, and whose "
                                  f"`state` that of {len(self.stateful.state)}: give Checkpoint the optimizer inside it")
        return count

    def _check_groups(self, saved):
        here = [len(group["params"]) for group in self.stateful.param_groups]
        if saved != here:
            raise CheckpointError(f"{self.name!r} has parameter groups of {here} in this script but {saved} in the checkpoint: restore with "
                                  "the optimizer that wrote it, or start the run afresh")

    def _rebuild(self, layout, view, parameter):
        tensor = owned_memory(view, "cpu" if layout.device == "cpu" else parameter.device)
        if layout.place is None:
            return tensor
        (place, _), = parts(parameter)
        if place != layout.place:
            raise CheckpointError(f"{layout.name} is {layout} in the checkpoint but its parameter is placed as {place} in this script: restore "
                                  "with the sharding that wrote it, or start the run afresh")
        # Shape and strides of the whole: from_local would take all parts to be as large as this one.
        return type(parameter).from_local(tensor, parameter.device_mesh, parameter.placements, run_check=False,
                                          shape=parameter.shape, stride=parameter.stride())


class _EagerHolder:
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


class TensorHolder(_EagerHolder):
    """One tensor, or this process's shards of one."""

    def capture(self):
        here = parts(self._value)
        self._names = [(self.name, place) for place, _ in here]
        return self._names, [tensor for _, tensor in here], None

    def restore(self, saved, rest):
        names, tensors, _ = self.capture()
        copy_into(self.name, names, tensors, saved)


class PlainHolder(_EagerHolder):
    """A dict or list of plain values, restored in place. `apart`: what is in it of modules, optimizers and the like, {path: object}."""

    def __init__(self, name, value):
        super().__init__(name, value)
        self.apart, self._told = {}, False
        replaced(self._plain(), [name], self._note, lambda container: container)
        self._names_apart = {id(item): path for path, item in self.apart.items()}
        self.held = set(self._names_apart)  # ids of those of `apart` that were in it at the last capture
        self.restored = frozenset()  # ids of what the checkpoint that is being restored has a holder for

    def capture(self):
        self._names, tensors = [], []
        self.held.clear()
        rest = _take_out(self._plain(), self.name, self._names, tensors, self._leave)
        return self._names, tensors, rest

    def _plain(self):
        """Its own type stays here, and need not be one that pickle knows."""
        plain = list if isinstance(self._value, list) else dict
        return self._value if type(self._value) is plain else plain(self._value)

    def _note(self, item, path):
        if has_state(item):
            name = _name_of(path)
            if self.apart.setdefault(name, item) is not item:
                raise CheckpointError(f"Checkpoint: {name!r} is the name of two things in {self.name!r}: give one of them another key")
        return item

    def _fill(self, item, path):
        """A copy lies in the checkpoint of what took the place of another, and, in an older one, of each. Its state goes into what this script has
        there, unless that comes back by itself."""
        own = self.apart.get(_name_of(path))
        if own is None or own is item or type(own) is not type(item) or id(own) in self.restored:
            return item
        if isinstance(own, torch.Generator):
            own.set_state(item.get_state())
        else:
            own.load_state_dict(item.state_dict())
        return own

    def _leave(self, item, path):
        if type(item) in ATOMS:
            return item
        if id(item) in self._names_apart:
            self.held.add(id(item))
            return _Apart(self._names_apart[id(item)])
        if not self._told and has_state(item):
            self._told = True
            _client.warn(f"{_name_of(path)} came into {self.name!r} after Checkpoint was made: it is saved as one value, and a restart puts its state "
                         "into what the script has in that place, or else a copy there, of which no other variable knows; make Checkpoint when all is in it")
        return item

    def restore(self, saved, rest):
        value = _with_copies(self.name, rest, saved, self.apart)
        if self.apart:
            here = set()
            value = replaced(value, [self.name], lambda item, path: self._seen(self._fill(item, path), here), lambda container: container)
            self._tell_missing(here)
        if isinstance(self._value, list):
            self._value[:] = value
        else:
            self._value.clear()
            self._value.update(value)


    @staticmethod
    def _seen(item, ids):
        ids.add(id(item))
        return item

    def _tell_missing(self, here):
        missing = [name for name, item in self.apart.items() if id(item) not in here]
        if missing:
            _client.warn(f"{missing[0]} is not in the checkpoint, so it is no more in {self.name!r}, which is as it was saved")


class StateDictHolder(_EagerHolder):
    """Schedulers, samplers, GradScaler, EMA helpers: whatever has state_dict() and load_state_dict()."""

    def capture(self):
        self._names, tensors = [], []
        rest = _take_out(self._value.state_dict(), self.name, self._names, tensors)
        return self._names, tensors, rest

    def restore(self, saved, rest):
        self._value.load_state_dict(_with_copies(self.name, rest, saved))


class GeneratorHolder(_EagerHolder):
    def capture(self):
        return [], [], _to_bytes(self._value.get_state())

    def restore(self, saved, rest):
        self._value.set_state(_from_bytes(rest))


class RngHolder(_EagerHolder):
    """The generators that every script uses without naming them. numpy's and CUDA's only where they are in use.

    Their words are kept as bytes: pickling 625 numbers, or an array, takes longer than all the rest of a small step().
    In a world of another size several ranks may begin with the state of one, so there all generators are seeded anew, by that
    state and the rank: the same whenever this checkpoint is restored by this rank, and another for each rank.
    """

    def capture(self):
        version, words, gauss = random.getstate()
        rest = {"python": (version, _PYTHON_WORDS.pack(*words), gauss), "torch": _to_bytes(torch.get_rng_state()), "world": _world_size()}
        if "numpy" in sys.modules:
            rest["numpy"] = _pack_numpy(sys.modules["numpy"].random.get_state())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            rest["cuda"] = [_to_bytes(state) for state in torch.cuda.get_rng_state_all()]
        return [], [], rest

    def restore(self, saved, rest):
        if rest.get("world", _world_size()) != _world_size():
            return self.seed_anew(rest)
        version, words, gauss = rest["python"]
        random.setstate((version, _PYTHON_WORDS.unpack(words), gauss))
        torch.set_rng_state(_from_bytes(rest["torch"]))
        if "numpy" in rest:
            import numpy

            numpy.random.set_state(_unpack_numpy(rest["numpy"], numpy))
        if "cuda" in rest:
            torch.cuda.set_rng_state_all([_from_bytes(state) for state in rest["cuda"]])

    @staticmethod
    def seed_anew(rest):
        rank = os.environ.get("RANK", "0").encode()
        seed = int.from_bytes(hashlib.sha256(rank + b"/" + rest["torch"]).digest()[:8], "little") >> 1  # torch takes 63 bits
        random.seed(seed)
        torch.manual_seed(seed)  # of all devices
        if "numpy" in rest:
            import numpy

            numpy.random.seed(seed & 0xFFFFFFFF)


def _world_size():
    return os.environ.get("WORLD_SIZE", "")


_PYTHON_WORDS = struct.Struct("<625I")  # the Mersenne twister's 624, and its position


def _pack_numpy(state):
    if isinstance(state, dict):  # a bit generator that the script has chosen
        return state
    name, words, *others = state
    return (name, words.tobytes(), *others)


def _unpack_numpy(state, numpy):
    if isinstance(state, dict):
        return state
    name, words, *others = state
    return (name, numpy.frombuffer(words, dtype=numpy.uint32), *others)


def _to_bytes(state):
    return state.numpy().tobytes()


def _from_bytes(state):
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
