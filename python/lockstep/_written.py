"""A checkpoint on disk as the ranks of another world wrote it: what restore(reshape=...) cuts a rank's part out of."""
import builtins
import os
import pickle

from . import reshape
from ._convert import read_head
from ._holding import put_back
from ._optimizer import direct_keys, numbered
from ._tensors import CheckpointError, Layout
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
        entries, rests = self._of(rank)
        if name not in rests:
            raise CheckpointError(f"{self._path}: rank {rank} gave no {name!r}: it gave {', '.join(sorted(rests))}")
        return put_back(rests[name], _Tensors(self, rank, _layouts(entries, name)))

    def optimizer(self, name, rank=0):
        """What `rank` gave under `name` in the form of an optimizer's state_dict(): {"state": {number of the parameter: {key: value}}, "param_groups"}, and
        whatever else its state_dict() had. Of sharded parameters the rank's own parts."""
        entries, rests = self._of(rank)
        rest = self.value(name, rank)
        state = {}
        layouts = _layouts(entries, name)
        for (parameter, key), layout in zip(direct_keys(name, rest, layouts), layouts):
            state.setdefault(parameter, {})[key] = self.tensor_of(layout, rank)
        for parameter, key, value in rest["others"]:
            state.setdefault(parameter, {})[key] = value
        state.update(rest.get("unbound", ()))
        return {**rest.get("extra", {}), "state": state, "param_groups": numbered(rest["groups"])}

    def tensor_of(self, layout, rank):
        """A copy of what a rank had, of a sharded one its part."""
        name = layout.name if self._has(layout.name, rank) else f"{layout.name}@{rank}"
        return self.load({name: self._box_of(layout, name, rank)}, rank=rank, as_torch=True)[name].clone()

    def _box_of(self, layout, name, rank):
        """None: the whole. A ShardedTensor's place says it, for a rank may have several; that of a DTensor is as inspect tells it."""
        if layout.place is None:
            return None
        if layout.place[0] == "shard":
            return layout.place[2], layout.shape
        (own,) = (shard for shard in self[name].shards if shard["rank"] == rank)
        return own["offsets"], own["sizes"]

    def _has(self, name, rank):
        return name in self.tensors and any(shard["rank"] == rank for shard in self.tensors[name].shards)

    def _of(self, rank):
        """(entries of the slot's layout, {name: picklable rest}) of a rank."""
        if not 0 <= rank < self.world_size:
            raise CheckpointError(f"{self._path}: there is no rank {rank}, {self.world_size} ranks wrote it")
        if rank not in self._ranks:
            with builtins.open(os.path.join(self._path, f"rank_{rank:05}.safetensors"), "rb") as file:
                _, layout, rest = split_meta(read_head(file)[2])
            self._ranks[rank] = pickle.loads(layout), pickle.loads(rest)
        return self._ranks[rank]


class _Tensors:
    """A holder's, by number, each read when it is asked for."""

    def __init__(self, written, rank, layouts):
        self._written, self._rank, self._layouts = written, rank, layouts

    def __getitem__(self, index):
        return self._written.tensor_of(self._layouts[index], self._rank)


def _layouts(entries, name):
    """Of a holder's tensors, in its order."""
    own = sorted((number, layout) for holder, number, layout in entries if holder == name)
    return [Layout.from_tuple(layout) for _, layout in own]
