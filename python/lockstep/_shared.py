"""What lies in several of the things that a script gives to Checkpoint, and is several after a restart: it is said."""
from . import _client
from ._containers import ATOMS
from ._plain import PlainHolder, has_state, name_of
from ._tensors import PLAIN, is_tensor


def tell(holders, names, tensors):
    """names: (holder, name) of each of these tensors. Says one thing at most."""
    values = {}
    for holder in holders:
        values.setdefault(id(holder._value) if isinstance(holder, PlainHolder) else holder.name, holder)
    containers = [holder for holder in values.values() if isinstance(holder, PlainHolder)]  # but for those that are given twice, and come back in place
    once, copied = {holder.name for holder in values.values()}, {holder.name: holder.copied() for holder in containers}
    said = _of_containers(containers) or _of_tensors([(name, tensor, name in copied.get(holder, ())) for (holder, name), tensor in zip(names, tensors)
                                                      if holder in once])
    if said:
        _client.warn(said)


def _of_tensors(tensors):
    """(name, tensor, whether a restart puts a copy in its place): of two that overlap, one of them such a copy."""
    spans = sorted(((str(tensor.device), tensor.data_ptr(), _end(tensor), name, copied) for name, tensor, copied in tensors
                    if type(tensor) in PLAIN and tensor.numel() > 0), key=lambda span: span[:3])
    last = None  # of those so far, the one that ends last
    for span in spans:
        device, begin, end, name, copied = span
        if last is None or last[0] != device or last[2] <= begin:
            last = span
            continue
        if copied or last[4]:
            what = "are one tensor" if last[1:3] == (begin, end) else "share memory, as views of one tensor do"
            return f"{last[3]} and {name} {what}: each is saved, and a restart puts two there that share none"
        last = max(last, span, key=lambda one: one[2])
    return None


def _end(tensor):
    """The address behind its last element."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def _of_containers(holders):
    """Of a dict or list in two of them. One that is plain values alone is one again, for it is pickled once; but not one that is given itself, which comes
    back in place."""
    first = {}
    for holder in holders:
        found = {}
        _look(holder._value, [holder.name], found)
        for own, (value, path, changes) in found.items():
            given = value is holder._value
            _, other, other_given = first.setdefault(own, (value, path, given))  # which keeps it, and its id
            if other is not path and not isinstance(value, tuple) and (changes or given or other_given):
                kind = "dict" if isinstance(value, dict) else "list"
                return (f"{name_of(other)} and {name_of(path)} are one {kind}: each is saved, and a restart puts two there; in one dict or list of "
                        "Checkpoint's it stays one")
    return None


def _look(value, path, found):
    """Notes {id: (it, path, whether something in it is saved by itself)} of the dicts, lists and tuples in `value`. Returns that of `value`."""
    if not isinstance(value, (dict, list, tuple)):
        return is_tensor(value) or has_state(value)
    if id(value) in found:
        return found[id(value)][2]
    items = value.values() if isinstance(value, dict) else value
    changes = False
    if not ATOMS.issuperset(map(type, items)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            changes = _look(item, [*path, key], found) or changes
    found[id(value)] = value, path, changes
    return changes
