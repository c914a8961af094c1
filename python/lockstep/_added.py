"""What a module's own state_dict() has beside parameters, buffers and extra state: a count that it writes in _save_to_state_dict(), say."""
import torch

from . import _client
from ._containers import refusal
from ._holding import take_out
from ._tensors import CheckpointError, Layout, is_tensor, parts

_EXTRA = "_extra_state"  # which get_extra_state() gives


class Added:
    """Of the modules of one tree whose classes, or hooks, have a state_dict() of their own. Those of torch.distributed gather or rename parameters and add
    nothing, so they are not asked. One that adds nothing at first is asked again only if that is cheap, for the module alone."""

    def __init__(self, name, named):
        """named: (prefix, module) of the whole tree."""
        self._name = name
        asks = [_Asked(prefix, module) for prefix, module in named if _is_own(module)]
        self._asked = [asked for asked in reversed(asks) if self._adds(asked)]  # what is inside another comes before that

    def __call__(self):
        """{prefix: {key: value}} of now."""
        found = {}
        for asked in list(self._asked):
            try:
                added = asked.now(found)
            except Exception as error:  # whatever a script's class raises
                self._asked.remove(asked)
                self._tell(asked, f"failed ({error})")
                continue
            if added:
                found[asked.prefix] = added
        return found

    def _adds(self, asked):
        if asked.whole and any("FullyShardedDataParallel" in {kind.__name__ for kind in type(part).__mro__} for part in asked.module.modules()):
            self._tell(asked, "would gather the parameters of FullyShardedDataParallel in every step")
            return False
        try:
            added = asked.now({})
        except Exception as error:  # whatever a script's class raises
            self._tell(asked, f"failed ({error})")
            return False
        if added and asked.is_torchs and _why_not(added) is not None:  # packed weights of a quantized layer, which nobody trains
            self._tell(asked, f"has what can't be saved ({_why_not(added)})")
            return False
        return bool(added) or not (asked.whole or asked.is_torchs)

    def _tell(self, asked, why):
        _client.warn(f"{_joined(self._name, asked.prefix)!r}: state_dict() of this {type(asked.module).__name__} {why}: its parameters and buffers are saved, "
                     "and nothing that it may have beside them")

    def restore(self, saved):
        for asked in self._asked:
            if asked.prefix in saved:
                why = asked.load(saved[asked.prefix])
                if why:
                    _client.warn(f"{_joined(self._name, asked.prefix)!r}: {', '.join(saved[asked.prefix])} of its state_dict() is as the script makes it, "
                                 f"for its load_state_dict() does not take it: {why}")


class _Asked:
    def __init__(self, prefix, module):
        self.prefix, self.module = prefix, module
        self.whole = _overrides(module, "state_dict") or _overrides(module, "load_state_dict") or bool(module._state_dict_hooks)
        self.is_torchs = type(module).__module__.split(".")[0] == "torch"
        self._known = {_joined(inner, key) for inner, part in (module.named_modules() if self.whole else [("", module)]) for key in (*_saved(part), _EXTRA)}

    def now(self, inside):
        """inside: what modules in this one add, by prefix."""
        known = self._known.union(_joined(prefix[len(self.prefix):].lstrip("."), key) for prefix, added in inside.items() for key in added
                                  if not self.prefix or prefix.startswith(self.prefix + "."))
        added = {key: value for key, value in self._state().items() if key not in known}
        if any(map(is_tensor, added.values())):  # under another name, perhaps
            held = {at for part in self.module.modules() for tensor in _saved(part).values() for at in _pointers(tensor)} - {0}
            added = {key: value for key, value in added.items() if not (is_tensor(value) and held.issuperset(_pointers(value)))}
        return added

    def _state(self):
        if self.whole:
            return self.module.state_dict()
        found = {}
        self.module._save_to_state_dict(found, "", False)
        return found

    def load(self, added):
        """Among what it has now, which that leaves as it is. Returns why not, or None."""
        try:
            state = self._state()
            state.update(added)
            if self.whole:
                self.module.load_state_dict(state)
                return None
            missing, unexpected, errors = [], [], []
            self.module._load_from_state_dict(state, "", {"version": self.module._version}, True, missing, unexpected, errors)
            return "; ".join([*errors, *(f"unexpected {key}" for key in unexpected)])
        except Exception as error:  # whatever a script's class raises
            return str(error).replace("\n", " ")


def _is_own(module):
    if type(module).__module__.startswith("torch.distributed."):
        return False
    return _overrides(module, "state_dict") or _overrides(module, "_save_to_state_dict") or bool(module._state_dict_hooks)


def _overrides(module, name):
    return name in vars(module) or getattr(type(module), name) is not getattr(torch.nn.Module, name)


def _saved(module):
    """{key: tensor} of the parameters and persistent buffers of a module alone."""
    buffers = {key: tensor for key, tensor in module._buffers.items() if key not in module._non_persistent_buffers_set}
    return {key: tensor for key, tensor in (*module._parameters.items(), *buffers.items()) if tensor is not None}


def _pointers(tensor):
    return [part.data_ptr() for _, part in parts(tensor)]


def _why_not(added):
    tensors = []
    try:
        rest = take_out(added, "", [], tensors)
        for tensor in tensors:
            Layout("it", tensor, None)
        return refusal(rest)
    except CheckpointError as error:
        return error


def _joined(prefix, key):
    return f"{prefix}.{key}" if prefix and key else prefix or key
