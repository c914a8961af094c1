"""The job of common.py with parameters and optimizer state sharded by FSDP2."""
import torch
import torch.distributed as dist

import fingerprint
from common import INPUTS, Job


class ShardedJob(Job):
    def _spread(self, model):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        complete_cpu_streams()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        # A group of its own. Not released between forward and backward: on the CPU, torch 2.6 then takes the second gathering for a write.
        fully_shard(model.layers[4], mesh=mesh, reshard_after_forward=False)
        return fully_shard(model, mesh=mesh)

    def update(self):
        """Ends with an evaluation, after which FSDP2 leaves the outer group's parameters gathered."""
        super().update()
        self.model.eval()
        with torch.no_grad():
            self.model(torch.zeros(2, INPUTS), torch.zeros(2, dtype=torch.long))
        self.model.train()

    def write(self, path):
        """Digests of the shards of all ranks, each rank's in turn."""
        parameters = {name: here(value) for name, value in self.model.state_dict().items()}
        state = self.optimizer.state_dict()
        state["state"] = {number: {key: here(value) for key, value in entry.items()} for number, entry in state["state"].items()}
        fingerprint.write(path, Digests(parameters), Digests(state), self.curve)


class Digests:
    """Stands for a model or optimizer: the digests of what every rank holds of it."""

    def __init__(self, state):
        self.ranks = [None] * dist.get_world_size()
        dist.all_gather_object(self.ranks, fingerprint.digest(state))

    def state_dict(self):
        return self.ranks


def here(value):
    return value.to_local() if hasattr(value, "to_local") else value


class Event:
    """On the CPU there is nothing to wait for."""

    def __getattr__(self, name):
        return lambda *_: None


def complete_cpu_streams():
    """torch 2.6 lacks these stand-ins of CUDA's streams, without which fully_shard fails on the CPU."""
    torch.cpu.Event = Event
    torch.cpu.Stream.record_event = lambda self, event=None: Event()
    torch.cpu.Stream.wait_event = lambda self, event: None
