"""A checkpoint on disk as the ranks of another world wrote it: what restore(reshape=...) cuts a rank's part out of."""
import builtins
import json
import os
import pickle

from . import reshape
from ._convert import read_head
from ._holding import owned_memory, put_back
from ._optimizer import by_number, direct_keys, numbered
from ._tensors import CheckpointError, Layout, unpickled, views
from .checkpoint import split_meta


def open(step, epoch):
    """That checkpoint of this run's --checkpoint-dir."""
    try:
        return Written(os.path.join(os.environ["LOCKSTEP_CHECKPOINT_DIR"], f"step_{step:012}_epoch_{epoch}"))
    except reshape.ReshapeError as error:
        raise CheckpointError(str(error)) from error


class Written(reshape.Saved):
    """All that lockstep.reshape.Saved has (tensors of all ranks by name: load(), load_flat(); `step`, `world_size`), and what each rank's script
    gave: value() and optimizer(). Its pickles are the job's own."""

    def __init__(self, path):
        super().__init__(reshape.inspect(path))
        self._path = path
        self._ranks = {}

    def value(self, name, rank=0):
        """What `rank` gave under `name`: a dict or list, or what the state_dict() of an object was. Of a module its extra state alone, whose tensors
        load() has. Tensors in it are copies."""
        return self._of(rank).value(name)

    def optimizer(self, name, rank=0):
        """What `rank` gave under `name` in the form of an optimizer's state_dict(): {"state": {number of the parameter: {key: value}}, "param_groups"}, and
        whatever else its state_dict() had. Of sharded parameters the rank's own parts."""
        own = self._of(rank)
        rest = own.value(name)
        keys = direct_keys(name, rest, own.layouts(name))
        state = by_number([(number, key, own.tensor(name, place)) for place, (number, key) in enumerate(keys)], rest)
        state.update(rest.get("unbound", ()))
        return {**rest.get("extra", {}), "state": state, "param_groups": numbered(rest["groups"])}

    def _of(self, rank):
        if not 0 <= rank < self.world_size:
            raise CheckpointError(f"{self._path}: there is no rank {rank}, {self.world_size} ranks wrote it")
        if rank not in self._ranks:
            self._ranks[rank] = _Rank(os.path.join(self._path, f"rank_{rank:05}.safetensors"))
        return self._ranks[rank]


class _Rank:
    """What one rank gave: its own file knows each of its tensors by holder and number, whatever others are named."""

    def __init__(self, path):
        self._path = path
        with builtins.open(path, "rb") as file:
            head, _, meta = read_head(file)
            begin = file.tell()
        table, layout, rest = split_meta(meta)
        self._rests = unpickled(rest, path)
        self._tensors = {}  # of a holder: {number: (layout, place in the file)}
        for (holder, number, values), entry in zip(pickle.loads(layout), json.loads(table)):
            at = begin + head[entry["name"]]["data_offsets"][0]
            self._tensors.setdefault(holder, {})[number] = Layout.from_tuple(values), at

    def value(self, name):
        if name not in self._rests:
            raise CheckpointError(f"{self._path}: this rank gave no {name!r}: it gave {', '.join(sorted(self._rests))}")
        return put_back(self._rests[name], _Copies(self, name))

    def layouts(self, name):
        return [layout for _, (layout, _) in sorted(self._tensors.get(name, {}).items())]

    def tensor(self, name, number):
        """A copy in memory of its own: in the file it may lie at any address."""
        layout, at = self._tensors[name][number]
        content = bytearray(layout.size)
        with builtins.open(self._path, "rb") as file:
            file.seek(at)
            file.readinto(content)
        (_, found), = views([layout], content)
        return owned_memory(found)


class _Copies:
    """A holder's tensors by number, each read when it is asked for."""

    def __init__(self, rank, name):
        self._rank, self._name = rank, name

    def __getitem__(self, number):
        return self._rank.tensor(self._name, number)
