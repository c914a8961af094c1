"""An optimizer as Checkpoint saves it."""
import itertools

import torch

from . import _client
from ._containers import refusal, simplified
from ._holding import owned_memory, take_out, with_copies
from ._tensors import PLAIN, CheckpointError, parts, same_place


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


def direct_keys(name, rest, layouts):
    """(number of the parameter, key) of the state tensors of a holder of this name, which come first of all that it has. Older checkpoints have no `keys`:
    there each is a str."""
    for place, layout in enumerate(layouts[: rest["direct"]]):
        number, key = layout.name[len(name) + 1 :].split(".", 1)
        yield int(number), rest.get("keys", {}).get(place, key)


def by_number(direct, rest):
    """{number of the parameter: {key: value}} of (number, key, tensor) and what is in the rest, keys in the order in which they were. Older checkpoints
    don't say it: what is no tensor comes last there.
    """
    found = {}
    for number, key, tensor in direct:
        found.setdefault(number, []).append((key, tensor))
    for (number, key, value), place in itertools.zip_longest(rest["others"], rest.get("places", ())):
        items = found.setdefault(number, [])
        items.insert(len(items) if place is None else place, (key, value))
    return {number: dict(items) for number, items in sorted(found.items())}


class OptimizerHolder:
    """State tensors by parameter number; param_groups and all other values in the rest, with their places among the keys of their parameter. Exact:
    nothing is cast on the way. A key that is a str stands in the tensor's name alone, any other in the rest too.

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

    def writes(self, parameter):
        """Whether it has: of one that never has a gradient nothing is lost."""
        return parameter.requires_grad and (parameter.grad is not None or bool(self.stateful.state.get(parameter)))

    def capture(self):
        keys, tensors, others, places, odd = [], [], [], [], {}
        state = self.stateful.state
        for number, parameter in enumerate(_parameters_of(self.stateful)):
            for nth, (key, value) in enumerate(state.get(parameter, {}).items()):
                if type(value) in PLAIN:
                    keys.append((number, key, None))
                    tensors.append(value)
                elif hasattr(value, "_local_tensor"):
                    (place, local), = parts(value)
                    keys.append((number, key, place))
                    tensors.append(local)
                else:
                    others.append((number, key, value))
                    places.append(nth)
                    continue
                if type(key) is not str:
                    odd[len(keys) - 1] = key
        groups = [{**group, "params": len(own["params"])} for group, own in zip(self.optimizer.param_groups, self.stateful.param_groups)]
        unbound = [(key, value) for key, value in state.items() if not isinstance(key, torch.Tensor)]  # of no parameter: a count of steps, say
        nested = []
        rest = take_out({"direct": len(keys), "keys": odd, "groups": groups, "others": others, "places": places, "unbound": unbound}, self.name, nested,
                        tensors)
        lazy = len(tensors)
        rest["extra"] = take_out(self.extra(), self.name, nested, tensors)
        self._keys, self._nested, self._lazy = keys, nested, lazy
        return [keys, nested, lazy, self._group_sizes()], tensors, rest

    def _group_sizes(self):
        return [len(group["params"]) for group in self.stateful.param_groups]

    def expect(self):
        """Remembers what a restart will have at this place."""
        self._expected = self._group_sizes()

    def misfit(self):
        """Why a restart would refuse what is saved now; None: it wouldn't."""
        here = self._group_sizes()
        return None if here == self._expected else f"it has parameter groups of {here}, and had {self._expected}"

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
        rest = with_copies(self.name, rest, saved)
        parameters = _parameters_of(self.stateful)
        keys = direct_keys(self.name, rest, [layout for layout, _ in saved])
        state = by_number([(number, key, self._rebuild(layout, view, parameters[number])) for (number, key), (layout, view) in zip(keys, saved)], rest)
        self.stateful.state.clear()
        self.stateful.state.update((parameters[number], entry) for number, entry in state.items())
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
        here = self._group_sizes()
        if saved != here:
            raise CheckpointError(f"{self.name!r} has parameter groups of {here} in this script but {saved} in the checkpoint: restore with "
                                  "the optimizer that wrote it, or start the run afresh")

    def _rebuild(self, layout, view, parameter):
        tensor = owned_memory(view, "cpu" if layout.device == "cpu" else parameter.device)
        if layout.place is None:
            return tensor
        (place, _), = parts(parameter)
        if not same_place(place, layout.place):
            raise CheckpointError(f"{layout.name} is {layout} in the checkpoint but its parameter is placed as {place} in this script: restore "
                                  "with the sharding that wrote it, or start the run afresh")
        # Shape and strides of the whole: from_local would take all parts to be as large as this one.
        return type(parameter).from_local(tensor, parameter.device_mesh, parameter.placements, run_check=False,
                                          shape=parameter.shape, stride=parameter.stride())
