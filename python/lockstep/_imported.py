"""Checkpoints that `lockstep checkpoint import` made of another system's: tensors by name and plain values, no pickle.

The script's own state says what is wanted: each holder looks for its tensors under the names that it saves them by, with or without what
wrappers such as DistributedDataParallel put into a name. docs/formats/foreign_checkpoints.md has the rules.
"""
import json

import torch

from ._containers import with_items
from ._optimizer import OptimizerHolder
from ._plain import PlainHolder, has_state
from ._state import GeneratorHolder, ModuleHolder, RngHolder, StateDictHolder, TensorHolder
from ._tensors import DTYPES, CheckpointError, Layout, is_tensor, parts, views

_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_TORCH = {known: name for name, known in DTYPES.items()}
_NOTHING = object()


def load(holders, table, layout, buffer, warn):
    """holders: {name: holder}, modules before optimizers. Raises CheckpointError where a module's tensor is not there, or another."""
    saved = _Imported(json.loads(table), json.loads(layout), buffer)
    for name, holder in holders.items():
        _restore(name, holder, saved, [one for one in holders.values() if isinstance(one, ModuleHolder)])
    if saved.afresh:
        warn(f"the imported checkpoint has nothing of {', '.join(saved.afresh)}: as the script made it")
    unused = saved.unused()
    if unused:
        warn(f"{len(unused)} of {saved.count} things in the imported checkpoint are in nothing that the script gives, the first is {unused[0]}")


def _restore(name, holder, saved, modules):
    if isinstance(holder, ModuleHolder):
        for key, tensor in holder.whole_tensors():
            saved.put(key, tensor)
    elif isinstance(holder, OptimizerHolder):
        _restore_optimizer(name, holder, saved, _names_of_parameters(modules))
        extra = holder.extra()
        if extra:
            holder.load_extra(_filled(extra, name, saved))
    elif isinstance(holder, TensorHolder):
        saved.put(name, holder._value)
    elif isinstance(holder, StateDictHolder):
        holder._value.load_state_dict(_filled(holder._value.state_dict(), name, saved))
    elif isinstance(holder, PlainHolder):
        value = _filled(holder._value, name, saved)
        holder.restore([], value)
    elif isinstance(holder, (GeneratorHolder, RngHolder)):
        saved.afresh.append(name)


class _Imported:
    """What one rank got."""

    def __init__(self, table, layout, buffer):
        layouts = [_layout_of(entry) for entry in table]
        self._parts, self._values, self._used, self.afresh = {}, layout["values"], set(), []
        for note, (found, view) in zip(layout["tensors"], views(layouts, buffer)):
            _, shape, offsets, _ = note["place"] or (None, found.shape, [0] * len(found.shape), None)
            self._parts.setdefault(note["name"], []).append((tuple(shape), tuple(offsets), view))
        self.count = len(self._parts) + len(self._values)
        self._plain = {}
        for key in [*self._parts, *self._values]:
            self._plain.setdefault(_without_wrappers(key), []).append(key)

    def find(self, name):
        """The key of a tensor or value; None: there is none."""
        if name in self._parts or name in self._values:
            return name
        found = self._plain.get(_without_wrappers(name), [None])
        if len(found) > 1:
            raise CheckpointError(f"{name} may be {found[0]} or {found[1]} of the imported checkpoint: import it with --rename")
        return found[0]

    def starting_with(self, prefix):
        """{rest of the name: name}"""
        return {key[len(prefix):]: key for key in [*self._parts, *self._values] if key.startswith(prefix)}

    def value(self, name):
        key = self.find(name)
        if key not in self._values:
            return _NOTHING
        self._used.add(key)
        return self._values[key]

    def shape(self, name):
        """Of the whole; None: no tensor."""
        found = self._parts.get(self.find(name))
        return found and found[0][0]

    def dtype(self, name):
        return self._parts[self.find(name)][0][2].dtype

    def put(self, name, tensor):
        """Fills the parts of `tensor` that are here."""
        key = self.find(name)
        if key not in self._parts:
            raise CheckpointError(f"the imported checkpoint lacks {name}: it has {_some(self._parts)}; import it with --rename if it has another name there")
        self._used.add(key)
        for offsets, local in _local_parts(tensor):
            self._fill(name, key, tuple(tensor.shape), offsets, local)

    def whole(self, name):
        """A tensor of its own, of one that is whole here."""
        tensor = torch.empty(self.shape(name), dtype=self.dtype(name))
        self.put(name, tensor)
        return tensor

    def _fill(self, name, key, shape, offsets, local):
        found = self._parts[key]
        if found[0][0] != shape or found[0][2].dtype != local.dtype:
            raise CheckpointError(f"{name} is {found[0][2].dtype} of shape {list(found[0][0])} in the imported checkpoint but {local.dtype} of shape "
                                  f"{list(shape)} in this script")
        filled = sum(_copy_common(begin, view, offsets, local) for _, begin, view in found)
        if filled != local.numel():
            raise CheckpointError(f"{name}: this rank needs {local.numel()} elements from {list(offsets)} on, and the imported checkpoint gave it "
                                  f"{filled} of them: import it without --as-saved and --shard, or with the sharding of this script")

    def unused(self):
        return [key for key in [*self._parts, *self._values] if key not in self._used]


def _layout_of(entry):
    real = entry.get("torch") or {"dtype": _TORCH[entry["dtype"]], "shape": entry["shape"]}
    return Layout.from_tuple((entry["name"], real["dtype"], tuple(real["shape"]), None, None, "cpu", entry["bytes"]))


def _without_wrappers(name):
    first, *rest = name.split(".")
    return ".".join([first, _without(rest)] if rest else [first])


def _without(parts):
    return ".".join(part for part in parts if part not in _WRAPPERS)


def _some(names):
    shown = sorted(names)[:3]
    return f"{', '.join(shown)} and {len(names) - len(shown)} more" if len(names) > len(shown) else ", ".join(shown) or "no tensor"


def _local_parts(tensor):
    """(offsets in the whole, plain tensor) of what this process has of it."""
    found = []
    for place, local in parts(tensor):
        if place is None:
            offsets = (0,) * local.dim()
        elif place[0] == "shard":
            offsets = place[2]
        else:
            offsets = _mesh_offsets(tensor)
        found.append((tuple(offsets), local.detach()))
    return found


def _mesh_offsets(tensor):
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:  # before torch 2.5
        from torch.distributed._tensor._utils import compute_local_shape_and_global_offset
    return compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1]


def _copy_common(begin, view, offsets, local):
    """Copies what both boxes have; how many elements that is."""
    there, here = [], []
    for first, size, wanted, count in zip(begin, view.shape, offsets, local.shape):
        low, high = max(first, wanted), min(first + size, wanted + count)
        if low >= high:
            return 0
        there.append(slice(low - first, high - first))
        here.append(slice(low - wanted, high - wanted))
    with torch.no_grad():
        target = local[tuple(here)]
        target.copy_(view[tuple(there)])
    return target.numel()


# ---- optimizers ----


def _names_of_parameters(modules):
    """{id of a parameter: its names in the modules}, without the names of the modules themselves."""
    names = {}
    for holder in modules:
        for key, tensor in holder.whole_tensors():
            names.setdefault(id(tensor), set()).add(_without(key[len(holder.name) + 1 :].split(".")))
    return names


def _restore_optimizer(name, holder, saved, names):
    """State by the parameter's number, as state_dict() has it, or by its name, as torch.distributed.checkpoint.state_dict has it."""
    parameters, optimizer = holder.parameters(), holder.stateful
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    numbers = {known: number for number, parameter in enumerate(parameters) for known in names.get(id(parameter), ())}
    state = [{} for _ in parameters]
    for rest, key in saved.starting_with(f"{name}.state.").items():
        owner, _, field = rest.rpartition(".")
        number = int(owner) if owner.isdigit() else numbers.get(_without(owner.split(".")))
        if number is not None and number < len(parameters) and id(parameters[number]) in own:
            state[number][field] = _state_of(key, parameters[number], saved)
    if any(state):
        for parameter in parameters:
            optimizer.state.pop(parameter, None)
        optimizer.state.update((parameter, entry) for parameter, entry in zip(parameters, state) if entry)
    else:
        saved.afresh.append(f"{name}'s state")
    for number, group in enumerate(holder.optimizer.param_groups):
        _restore_group(name, number, group, saved)


def _state_of(key, parameter, saved):
    shape = saved.shape(key)
    if shape is None:
        return saved.value(key)
    if shape != tuple(parameter.shape):  # a count of steps
        return saved.whole(key)
    tensor = torch.empty_like(parameter.detach(), dtype=saved.dtype(key))
    saved.put(key, tensor)
    return tensor


def _restore_group(name, number, group, saved):
    """Learning rate and the like; which parameters a group has is the script's to say."""
    whole = saved.value(f"{name}.param_groups")
    found = whole[number] if isinstance(whole, list) and number < len(whole) else {}
    found = {**found, **{rest: saved.value(key) for rest, key in saved.starting_with(f"{name}.param_groups.{number}.").items()}}
    for key, value in found.items():
        if key != "params" and key in group and value is not _NOTHING and not is_tensor(group[key]):
            group[key] = tuple(value) if isinstance(group[key], tuple) else value


# ---- the rest ----


def _filled(value, name, saved):
    """`value` with everything in it that the checkpoint has under such a name."""
    if is_tensor(value):
        if saved.shape(name) is None:
            return _kept(value, name, saved)
        tensor = torch.empty_like(value)
        saved.put(name, tensor)
        return tensor
    if has_state(value):
        return value  # which has a holder of its own
    if isinstance(value, dict) and value:
        return with_items(value, {key: _filled(item, f"{name}.{key}", saved) for key, item in value.items()})
    found = saved.value(name)
    if found is not _NOTHING:
        return tuple(found) if isinstance(value, tuple) else found
    if type(value) in (list, tuple) and value:
        return type(value)(_filled(item, f"{name}.{number}", saved) for number, item in enumerate(value))
    return _kept(value, name, saved)


def _kept(value, name, saved):
    saved.afresh.append(name)
    return value
