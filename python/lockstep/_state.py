"""What a training script hands to Checkpoint, each kind behind one small class.

A holder's capture() returns (stamp, tensors, rest): the tensors of this moment in an order that the stamp fixes, and the picklable
rest. While the stamp stays equal, names() stays equal. `lazy(i)` says whether tensor i is written by an optimizer only, so that it
may be copied beside the next forward and backward pass. restore() takes back what capture() gave: pairs (Layout, view into shared
memory) in capture's order, and the rest. simplified() is asked of a rest that pickle can't take: (another for it, what is lost with that).
"""
import hashlib
import itertools
import operator
import os
import random
import struct
import sys

import torch

from . import _client
from ._containers import simplified
from ._holding import _Apart, _Slot, EagerHolder, copy_into, form_of, owned_memory, take_out, with_copies  # noqa: F401 (pickles look for the first two here)
from ._optimizer import OptimizerHolder
from ._plain import PlainHolder
from ._tensors import PLAIN, CheckpointError, check_writable, is_tensor, overlaps, parts


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
        return PlainHolder(name, value, owned)
    raise CheckpointError(f"Checkpoint: {name!r} is a {type(value).__name__}; expected a module, an optimizer, a tensor, a generator, an "
                          "object with state_dict() and load_state_dict(), or a dict or list of plain values: wrap it in one")


_keys, _values = operator.methodcaller("keys"), operator.methodcaller("values")  # those of a scripted module can't be iterated themselves


class ModuleHolder:
    """Parameters and persistent buffers of a module tree, each tensor once however often it is used."""

    simplified = staticmethod(simplified)

    def __init__(self, name, module, owned):
        self.name = name
        self.module, self._owned = module, owned
        self._stamp, self._folders, self._children, self._skipped = None, [], [], []
        self._tensors, self._ties = None, None  # ids of all, None's too; for each the place of the first that is the same
        self._fully_sharded = [part for part in module.modules() if hasattr(part, "reshard") and hasattr(part, "unshard")]
        self._tell_own({type(part) for part in module.modules()})

    def capture(self):
        self._gather_nothing()
        stamp, values = self._look()
        if stamp != self._stamp:
            self._walk()
            stamp, values = self._look()
            self._stamp = stamp
        tensors = [values[number] for number in self._numbers]
        if self._sharded:
            tensors = [part for tensor in tensors for _, part in parts(tensor)]
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

    def _look(self):
        """(what is equal as long as the same modules have the same keys, and the same of these one tensor or none; all values of these): cheap enough for
        every step."""
        values = list(itertools.chain.from_iterable(map(_values, self._folders)))
        tensors = list(map(id, values))
        if tensors != self._tensors:
            first = {id(None): -1}
            self._tensors, self._ties = tensors, [first.setdefault(tensor, number) for number, tensor in enumerate(tensors)]
        keys = list(itertools.chain.from_iterable(map(_keys, self._folders)))
        children = list(map(id, itertools.chain.from_iterable(map(_values, self._children))))
        return [keys, list(map(len, self._folders)), children, list(map(len, self._skipped)), self._ties], values

    def _tell_own(self, kinds):
        """What a script's or a library's own state_dict() returns is not known before it is asked, which may gather, or count."""
        own = sorted({kind.__name__ for kind in kinds if not kind.__module__.startswith("torch.") and any(
            not str(getattr(getattr(kind, name), "__module__", "torch.")).startswith("torch.") for name in ("state_dict", "_save_to_state_dict"))})
        if own:
            _client.warn_once(f"{self.name!r}: {', '.join(own)} has a state_dict() of its own: what that has beside parameters and buffers is not saved; "
                              "get_extra_state() and set_extra_state() of the module are asked for such things")

    def _walk(self):
        named = list(self.module.named_modules())
        self._extra = [(prefix, module) for prefix, module in named
                       if type(module).get_extra_state is not torch.nn.Module.get_extra_state]
        self._folders = [folder for _, module in named for folder in (module._parameters, module._buffers)]
        self._children = [module._modules for _, module in named]
        self._skipped = [module._non_persistent_buffers_set for _, module in named]
        self._places, self._numbers, self._wholes, self._names, self._ids, self._sharded = [], [], [], [], [], False
        seen, number = set(), itertools.count()
        for prefix, module in named:
            for folder, skipped in ((module._parameters, ()), (module._buffers, module._non_persistent_buffers_set)):
                for (key, tensor), at in zip(folder.items(), number):
                    if tensor is not None and key not in skipped and id(tensor) not in seen:
                        seen.add(id(tensor))
                        self._numbers.append(at)
                        self._add(folder, key, self._name_of(prefix, key))
                        if folder is module._parameters:
                            check_writable(self._wholes[-1], tensor)

    def _name_of(self, prefix, key):
        return f"{self.name}.{prefix}.{key}" if prefix else f"{self.name}.{key}"

    def _add(self, folder, key, name):
        self._places.append((folder, key))
        self._wholes.append(name)
        for place, _ in parts(folder[key]):
            self._sharded = self._sharded or place is not None
            self._names.append((name, place))
            self._ids.append(id(folder[key]))

    def expect(self):
        """Remembers what a restart will have at this place."""
        forms = self._forms()
        self._expected = {key: None if form is not None and form[0] else form for key, form in forms.items()}  # of buffers any shape fits
        self._may_come = {name for name, key, module in self._buffers() if module._buffers[key] is None}

    def misfit(self):
        """Why a restart would refuse what is saved now; None: it wouldn't."""
        forms = self._forms()
        for (name, place), form in forms.items():
            if (name, place) not in self._expected and name not in self._may_come:
                return f"it has {name}, which was not there"
            expected = self._expected.get((name, place))
            if expected is not None and form is not None and expected != form:
                return f"{name} is {form[1]}, and was {expected[1]}"
        gone = self._expected.keys() - forms.keys()
        return f"{min(name for name, _ in gone)} is no more" if gone else None

    def _forms(self):
        """{(name, place): (whether it is a buffer, dtype and shape); None of what is not made yet} of each part."""
        _, tensors, _ = self.capture()
        buffers = {id(module._buffers[key]) for _, key, module in self._buffers()}
        return {(name, place): None if torch.nn.parameter.is_lazy(tensor) else (whole in buffers, form_of(tensor))
                for (name, place), whole, tensor in zip(self._names, self._ids, tensors)}

    def _buffers(self):
        for prefix, module in self.module.named_modules():
            for key in module._buffers.keys():
                if key not in module._non_persistent_buffers_set:
                    yield self._name_of(prefix, key), key, module

    def _make_fit(self, saved):
        """Buffers that were None, or of another shape, get what was saved: those of an observer, or a queue that grows, change while the script trains."""
        saved, told = {layout.name: (layout, view) for layout, view in saved if layout.place is None}, []
        for name, key, module in self._buffers():
            own = module._buffers[key]
            if name not in saved or (own is not None and (type(own) not in PLAIN or torch.nn.parameter.is_lazy(own))):
                continue
            layout, view = saved[name]
            if own is None:
                module._buffers[key] = with_copies(self.name, _Slot(0), [saved[name]])
            elif form_of(own) != str(layout):
                told.append(f"{name} is {layout} and not {form_of(own)}")
                own.data = owned_memory(view, own.device)
            elif overlaps(own) and not own.equal(view.to(own.device)):
                own.data = owned_memory(view, own.device)
        if told:
            _client.warn_once(f"{len(told)} buffers of {self.name!r} are as they were saved, and not as this script makes them: {told[0]}")

    def restore(self, saved, rest):
        shapes = {layout.name: layout.shape for layout, _ in saved}
        self._make_fit(saved)
        _, tensors, _ = self.capture()
        for (name, _), tensor in zip(self._names, tensors):
            if torch.nn.parameter.is_lazy(tensor) and name in shapes:
                tensor.materialize(shapes[name])  # as the first forward pass would
        copy_into(self.name, self._names, tensors, saved)
        for prefix, module in self._extra:
            if prefix in rest:
                module.set_extra_state(rest[prefix])


class TensorHolder(EagerHolder):
    """One tensor, or this process's shards of one."""

    def expect(self):
        check_writable(self.name, self._value)
        self._expected = self._forms()

    def misfit(self):
        forms = self._forms()
        return None if forms == self._expected else f"it is {', '.join(forms)}, and was {', '.join(self._expected)}"

    def _forms(self):
        return [form_of(part) for _, part in parts(self._value)]

    def capture(self):
        here = parts(self._value)
        self._names = [(self.name, place) for place, _ in here]
        return self._names, [tensor for _, tensor in here], None

    def restore(self, saved, rest):
        names, tensors, _ = self.capture()
        copy_into(self.name, names, tensors, saved)


class StateDictHolder(EagerHolder):
    """Schedulers, samplers, GradScaler, EMA helpers: whatever has state_dict() and load_state_dict()."""

    def capture(self):
        self._names, tensors = [], []
        rest = take_out(self._value.state_dict(), self.name, self._names, tensors)
        return self._names, tensors, rest

    def restore(self, saved, rest):
        self._value.load_state_dict(with_copies(self.name, rest, saved))


class GeneratorHolder(EagerHolder):
    def capture(self):
        return [], [], _to_bytes(self._value.get_state())

    def restore(self, saved, rest):
        self._value.set_state(_from_bytes(rest))


class RngHolder(EagerHolder):
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
