"""The containers of a script's state, dicts, lists and tuples of any type: taken apart, put together again, and made such that pickle takes them."""
import collections
import copy
import operator
import pickle

from ._tensors import CheckpointError

ATOMS = frozenset((int, float, complex, bool, str, bytes, type(None)))
_BARE = frozenset((dict, list, tuple))  # have no attributes


def replaced(value, path, replace, finish):
    """`value` with replace(item, path of it) for each item in its dicts, lists and tuples. Where none changes it is the object itself, which
    pickle knows how to restore; else one of its type, the same one wherever it is met. A long list of plain values, a curve of losses say, costs a look
    at their types. finish(container) is what each one of a subclass becomes. Raises CheckpointError of one that lies in itself, and of too deep a nest.
    """
    try:
        return _replaced(value, path, replace, finish, {})
    except RecursionError:
        raise CheckpointError(f"{path[0] if path else 'the checkpoint'!r} has dicts, lists and tuples in each other more deeply than Python goes: give "
                              "Checkpoint a flat form of it") from None


def _replaced(value, path, replace, finish, made):
    """made: by the id of a container, that container and what it became; None: it is not at its end yet."""
    if isinstance(value, dict):
        items = value.values()
    elif isinstance(value, (list, tuple)):
        items = value
    else:
        return replace(value, path)
    bare, changes, own = type(value) in _BARE, {}, id(value)
    plain = ATOMS.issuperset(map(type, items))
    if plain and bare:
        return value
    if own in made:
        return _met_again(made[own], value, path)
    made[own] = None
    if not plain:
        for key, item in value.items() if items is not value else enumerate(value):
            path.append(key)
            changed = _replaced(item, path, replace, finish, made)
            path.pop()
            if changed is not item:
                changes[key] = changed
    if bare:
        result = with_items(value, changes) if changes else value
    else:
        result = finish(_with_attributes(value, changes, path, replace))
    if result is value:
        del made[own]  # and each place of it is looked at
    else:
        made[own] = value, result  # the first, or another might get its id
    return result


def _met_again(known, value, path):
    if known is None:
        raise CheckpointError(f"{'.'.join(map(str, path))} is a {type(value).__name__} that lies in itself, which can't be saved: give Checkpoint a form without "
                              "such a circle")
    return known[1]


def _with_attributes(value, changes, path, replace):
    """One of a subclass with `changes`, and with replace() for its attributes, which pickle takes along."""
    own = getattr(value, "__dict__", None)
    if not own:
        return with_items(value, changes) if changes else value
    if isinstance(value, dict) and own.keys() == value.keys() and all(own[key] is item for key, item in value.items()):
        # They are the items. Its own constructor makes them so again; pickle has made two dicts of one.
        return value if own is value and not changes else _constructed(value, {**value, **changes})
    attributes = {}
    for key, item in own.items():
        changed = replace(item, [*path, key])
        if changed is not item:
            attributes[key] = changed
    if not changes and not attributes:
        return value
    copied = with_items(value, changes)
    if type(copied) is type(value):
        copied.__dict__.update(attributes)
    return copied


def _constructed(value, items):
    try:
        made = type(value)(items)
        return made if made.keys() == items.keys() and all(made[key] is item for key, item in items.items()) else items
    except Exception:  # another constructor
        return items


def with_items(value, changes):
    """A copy of a dict, list or tuple, of its type (a defaultdict with its factory), in which `changes` are other values by key or place. Where
    the type can't be copied so, a plain one."""
    try:
        copied = _like(value, changes)
    except Exception:  # whatever a script's class raises
        copied = None
    if copied is not None:
        return copied
    if isinstance(value, dict):
        return {**value, **changes}
    return (tuple if isinstance(value, tuple) else list)(_in_order(value, changes))


def _in_order(value, changes):
    return [changes.get(place, item) for place, item in enumerate(value)]


def _like(value, changes):
    """None: its type makes something else of it."""
    if isinstance(value, tuple):
        items = _in_order(value, changes)
        copied = value._make(items) if hasattr(value, "_make") else type(value)(items)
        return copied if len(copied) == len(items) and all(map(operator.is_, copied, items)) else None
    copied = copy.copy(value)
    if copied is value or len(copied) != len(value):
        return None
    put = dict.__setitem__ if isinstance(value, dict) else list.__setitem__  # a class's own may look at what it gets
    for key, item in changes.items():
        put(copied, key, item)
    return copied


_READ_BACK = {collections.OrderedDict: True, collections.defaultdict: True, collections.Counter: True}


def readable(container):
    """A plain dict for one that pickle would write and could not read: by a __setitem__ that needs what __init__ sets, say. Each type is tried
    once."""
    kind = type(container)
    if not isinstance(container, dict) or kind is dict:
        return container
    if kind not in _READ_BACK:
        _READ_BACK[kind] = _reads_back(container)
    return container if _READ_BACK[kind] else dict(container)


def _reads_back(container):
    if refusal(container) is not None:
        return True  # which will be found out, and said, of all that is saved
    try:
        read = pickle.loads(pickle.dumps(container, protocol=4))
        return type(read) is type(container) and read.keys() == container.keys()
    except Exception:
        return False


def refusal(rest):
    """Why pickle can't take it, or None."""
    try:
        pickle.dumps(rest, protocol=4)
    except Exception as error:  # whatever a user's __reduce__ raises
        return error
    return None


def simplified(rest):
    """(a rest that pickle can't take, without the kinds of dict that may be why; what that means)"""
    return _with_plain_dicts(rest), "its dicts of other types come back as plain ones"


def _with_plain_dicts(rest):
    if isinstance(rest, dict):
        inside = [(key, _with_plain_dicts(item)) for key, item in rest.items()]
        return collections.OrderedDict(inside) if type(rest) is collections.OrderedDict else dict(inside)
    if type(rest) in (list, tuple):
        return type(rest)(map(_with_plain_dicts, rest))
    return rest


def unreadable(rest, path):
    """(path, value, error) of the smallest thing in `rest` that pickle writes and can't read; None: it reads all."""
    try:
        pickle.loads(pickle.dumps(rest, protocol=4))
        return None
    except Exception as error:  # whatever a class's own constructor raises
        found = next(filter(None, (unreadable(item, [*path, key]) for key, item in _items(rest))), None)
        return found or (path, rest, error)


def _items(value):
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()


def hidden(rest, path, look):
    """(path, value, object) of a value that is no dict, list or tuple and has an object in it for which look(object) is true; None: there is none."""
    finder = _Finder(look)
    try:
        finder.dump(rest)
    except _Found:
        inside = next(filter(None, (hidden(item, [*path, key], look) for key, item in _items(rest))), None)
        return inside or (path, rest, finder.found)
    except Exception:  # which is said where it is saved
        pass
    return None


class _Found(Exception):
    pass


class _Nowhere:
    def write(self, data):
        return len(data)


class _Finder(pickle.Pickler):
    """Ends at the first object that is looked for."""

    def __init__(self, look):
        super().__init__(_Nowhere(), 4)
        self._look, self.found = look, None

    def reducer_override(self, one):
        if self._look(one):
            self.found = one
            raise _Found
        return NotImplemented
