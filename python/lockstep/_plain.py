"""What a script hands to Checkpoint as a dict or list: saved as one value, but for what has a state of its own."""
import torch

from . import _client
from ._containers import ATOMS, hidden, replaced
from ._holding import _Apart, EagerHolder, form_of, name_of, take_out, with_copies
from ._tensors import CheckpointError, Layout, overlaps


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


def _would_be_a_copy(item):
    """Of what other variables know, where it is inside of an object of another kind."""
    return isinstance(item, (torch.optim.Optimizer, torch.nn.Parameter)) or isinstance(item, (torch.Generator, torch.nn.Module)) and has_state(item)


def _keeps(module):
    """Its state_dict() is not asked: one of FSDP gathers all parameters, and a script's own may refuse."""
    if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
        return True
    buffers = [tensor for key, tensor in module._buffers.items() if key not in module._non_persistent_buffers_set]
    return any(tensor is not None for tensor in (*module._parameters.values(), *buffers))


class PlainHolder(EagerHolder):
    """A dict or list of plain values, restored in place. `apart`: what is in it of modules, optimizers and the like, {path: object}. A parameter in it, or
    another leaf that is trained, is saved as the other tensors are, and comes back in the one that the script has there, for others know that."""

    def __init__(self, name, value, owned=frozenset()):
        super().__init__(name, value)
        self.apart, self._told, self._owned = {}, False, owned
        self._kinds, self._looked_at = set(), None  # types of the objects that it has had, and how many at the last look
        self.news = False  # the last capture() found an object of a new type
        replaced(self._plain(), [name], self._note, lambda container: container)
        self._names_apart = {id(item): path for path, item in self.apart.items()}
        self.held = set(self._names_apart)  # ids of those of `apart` that were in it at the last capture
        self.restored = frozenset()  # ids of what the checkpoint that is being restored has a holder for

    def capture(self):
        self._names, tensors = [], []
        self.held.clear()
        rest = take_out(self._plain(), self.name, self._names, tensors, self._leave)
        self.news = len(self._kinds) != self._looked_at
        if self.news:
            self._look(rest)
        return self._names, tensors, rest

    def _look(self, rest):
        """For what can be saved and comes back as something else."""
        if self._looked_at is None:
            self._tell_attributes()
        self._looked_at = len(self._kinds)
        found = None if self._told else hidden(rest, [self.name], _would_be_a_copy)
        if found:
            self._told = True
            path, value, one = found
            _client.warn(f"{name_of(path)} is a {type(value).__name__} with a {type(one).__name__} in it: it is saved as one value, and a restart puts a copy "
                         "there, of which no other variable knows; give Checkpoint what is in it by a name of its own, or in a dict, list or tuple")

    def _tell_attributes(self):
        """But for those with an underscore, by which libraries that let a dict's items be attributes keep their books."""
        own = getattr(self._value, "__dict__", {})
        lost = [key for key in own if not key.startswith("_") and not (isinstance(self._value, dict) and key in self._value)]
        if lost:
            _client.warn(f"{self.name!r} is a {type(self._value).__name__} with attributes ({', '.join(lost)}), which are not saved, only its items are: put "
                         "them there, or give Checkpoint an object with state_dict() and load_state_dict()")

    def _plain(self):
        """Its own type stays here, and need not be one that pickle knows."""
        plain = list if isinstance(self._value, list) else dict
        return self._value if type(self._value) is plain else plain(self._value)

    def _note(self, item, path):
        if has_state(item):
            name = name_of(path)
            if self.apart.setdefault(name, item) is not item:
                raise CheckpointError(f"Checkpoint: {name!r} is the name of two things in {self.name!r}: give one of them another key")
        return item

    def _fill(self, item, path):
        """A copy lies in the checkpoint of what took the place of another, and, in an older one, of each. Its state goes into what this script has
        there, unless that comes back by itself."""
        own = self.apart.get(name_of(path))
        if own is None or own is item or type(own) is not type(item) or id(own) in self.restored:
            return item
        if isinstance(own, torch.Generator):
            own.set_state(item.get_state())
        else:
            own.load_state_dict(item.state_dict())
        return own

    def _leaves(self):
        """{path: tensor} of what this script trains."""
        return {path: item for path, item in self._tensors() if item.is_leaf and (item.requires_grad or self._is_known(item))}

    def _tensors(self):
        """(path, tensor) of all in it."""
        found = []

        def note(item, path):
            if isinstance(item, torch.Tensor):
                found.append((tuple(path), item))
            return item

        replaced(self._plain(), [self.name], note, lambda container: container)
        return found

    def _is_known(self, tensor):
        return isinstance(tensor, torch.nn.Parameter) or id(tensor) in self._owned

    def copied(self):
        """Names of the tensors in whose place a restart puts another."""
        in_place = {name_of(path) for path in self._leaves()}
        return {name for name, _ in self._names} - in_place

    def expect(self):
        """Remembers what a restart will have in the places of the parameters."""
        self._expected = {path: form_of(tensor) for path, tensor in self._leaves().items() if self._is_known(tensor)}

    def misfit(self):
        """Why a restart would refuse what is saved now; None: it wouldn't."""
        forms = {path: form_of(tensor) for path, tensor in self._tensors()} if self._expected else {}
        for path, expected in self._expected.items():
            if forms.get(path, expected) != expected:
                return f"{name_of(path)} is {forms[path]}, and was {expected}"
        return None

    def _copied(self, own, item, path):
        """A leaf that no optimizer knows may have become another."""
        if (own.shape, own.dtype) == (item.shape, item.dtype):
            with torch.no_grad():
                own.data = item if overlaps(own) else own.data.copy_(item)
            return own
        if self._is_known(own):
            name = name_of(path)
            raise CheckpointError(f"{name} is {Layout(name, item, None)} in the checkpoint but {Layout(name, own, None)} in this script: "
                                  "restore with the script that wrote it, or start the run afresh")
        return item

    def _leave(self, item, path):
        if type(item) in ATOMS:
            return item
        if id(item) in self._names_apart:
            self.held.add(id(item))
            return _Apart(self._names_apart[id(item)])
        self._kinds.add(type(item))
        if not self._told and has_state(item):
            self._told = True
            _client.warn(f"{name_of(path)} came into {self.name!r} after Checkpoint was made: it is saved as one value, and a restart puts its state "
                         "into what the script has in that place, or else a copy there, of which no other variable knows; make Checkpoint when all is in it")
        return item

    def restore(self, saved, rest):
        value = with_copies(self.name, rest, saved, self.apart)
        leaves, here = self._leaves(), set()

        def come_back(item, path):
            own = leaves.get(tuple(path))
            item = self._copied(own, item, path) if own is not None and isinstance(item, torch.Tensor) else self._fill(item, path)
            here.add(id(item))
            return item

        if self.apart or leaves:
            value = replaced(value, [self.name], come_back, lambda container: container)
            self._tell_missing(here)
        if isinstance(self._value, list):
            self._value[:] = value
        else:
            self._value.clear()
            self._value.update(value)

    def _tell_missing(self, here):
        missing = [name for name, item in self.apart.items() if id(item) not in here]
        if missing:
            _client.warn(f"{missing[0]} is not in the checkpoint, so it is no more in {self.name!r}, which is as it was saved")
