"""torch 1.13's distributed checkpoints, which can't be imported under Python 3.11 as they are: a default there has no hash."""
import dataclasses
import functools

import torch.distributed as dist

_dataclass = dataclasses.dataclass


def _with_hash(cls=None, **options):
    if cls is None:
        return functools.partial(_with_hash, **options)
    return _dataclass(cls, unsafe_hash=not options.get("frozen") and "__hash__" not in vars(cls), **options)


dataclasses.dataclass = _with_hash
try:
    from torch.distributed._shard import checkpoint, sharded_tensor, sharding_spec
finally:
    dataclasses.dataclass = _dataclass


def sharded(whole):
    """A ShardedTensor of rows."""
    world = dist.get_world_size()
    spec = sharding_spec.ChunkShardingSpec(dim=0, placements=[f"rank:{rank}/cpu" for rank in range(world)])
    tensor = sharded_tensor.zeros(spec, *whole.shape)
    for shard in tensor.local_shards():
        first, count = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
        shard.tensor.copy_(whole[first : first + count])
    return tensor
