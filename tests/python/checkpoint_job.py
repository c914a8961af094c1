"""A job whose whole state a test saves and compares, and a starter of the test's own under it."""
import contextlib
import hashlib
import io
import os
import pickle
import random
import signal
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "..", "..", "python")
sys.path[:0] = [PACKAGE, HERE]
BINARY = os.environ.get("LOCKSTEP_BINARY", "")
os.environ.setdefault("LOCKSTEP_CLIENT_LIB", os.path.join(os.path.dirname(BINARY), "..", "lib", "liblockstep-client.so"))

import lockstep
from fake_starter import FakeStarter, in_worker

try:
    import numpy
    import torch
    from torch import nn

    torch.set_num_threads(1)  # workers are forked, and threads don't survive that
except ImportError:
    torch = nn = None


class Ema:
    """Averaged weights, with state_dict() of its own."""

    def __init__(self, module):
        self.module = module
        self.average = [p.detach().clone() for p in module.parameters()]

    def update(self):
        for mean, p in zip(self.average, self.module.parameters()):
            mean.mul_(0.9).add_(p.detach(), alpha=0.1)

    def state_dict(self):
        return {"average": self.average}

    def load_state_dict(self, state):
        self.average = state["average"]


class Job:
    """Everything that a resumed job must find again: dropout, batch norm, channels_last, schedule, cursor, all generators."""

    def __init__(self, make_optimizer):
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.3), nn.Flatten(), nn.Linear(8 * 36, 4))
        if make_optimizer is not lbfgs:  # which needs contiguous gradients
            self.net = self.net.to(memory_format=torch.channels_last)
        self.optimizer = make_optimizer(self.net.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.5)
        self.ema, self.generator = Ema(self.net), torch.Generator().manual_seed(5)
        self.cursor, self.losses, self.noise = {"sample": 0}, [], torch.zeros(5)[::2]

    def state(self):
        return {"net": self.net, "optimizer": self.optimizer, "scheduler": self.scheduler, "ema": self.ema, "cursor": self.cursor,
                "generator": self.generator, "losses": self.losses, "noise": self.noise}

    def step(self):
        x = torch.randn(4, 3, 8, 8, generator=self.generator) + random.random() + numpy.random.rand()

        def closure():
            self.optimizer.zero_grad()
            loss = self.net(x).pow(2).mean()
            loss.backward()
            return loss

        self.noise.copy_(torch.randn(3))
        loss = self.optimizer.step(closure)
        self.scheduler.step()
        self.ema.update()
        self.cursor["sample"] += 4
        self.losses.append(loss.item())

    def everything(self):
        state = [(key, value if isinstance(value, (list, dict)) else value.state_dict()) for key, value in self.state().items()
                 if key not in ("generator", "noise")]
        generators = [random.getstate(), torch.get_rng_state(), numpy.random.get_state()[1].tolist(), self.generator.get_state()]
        return {key: digest(value) for key, value in [*state, ("generators", generators), ("noise", self.noise)]}


def digest(value):
    return hashlib.sha256(repr(_plain(value)).encode()).hexdigest()


def _plain(value):
    """Tensors as (dtype, shape, bytes), so that equal text means equal bits."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return sorted((str(key), _plain(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return repr(value)


def train(make_optimizer, steps, die_in=None, **options):
    """Returns (last step of the restored checkpoint, all state at the end)."""
    job = Job(make_optimizer)
    ckpt = lockstep.Checkpoint(job.state(), **options)
    last = ckpt.restore()
    for i in range(last + 1, steps):
        job.step()
        if i == die_in:
            os.kill(os.getpid(), signal.SIGKILL)
        ckpt.step(i, loss=job.losses[-1])
    ckpt._client.save_wait()
    return last, job.everything()


def on_disk(folder, *states):
    """lockstep._written.Written of a checkpoint in `folder` of ranks whose scripts gave these states."""
    from lockstep import _convert, _plan, _state, _written

    ranks = {}
    for rank, state in enumerate(states):
        names, tensors, rests = [], [], {}
        for name, holder in _state.holders_of(state, set()).items():
            _, some, rests[name] = holder.capture()
            names += [(name, number, tensor, place, False) for number, (tensor, place) in enumerate(holder.names())]
            tensors += some
        meta = _plan.Plan(None, names, tensors).described() + pickle.dumps(rests)
        named = {entry["name"]: tensor.detach() for entry, tensor in zip(_convert.read_table(meta), tensors)}
        ranks[str(rank)] = {"tensors": named, "meta": torch.frombuffer(bytearray(meta), dtype=torch.uint8)}
    saved = {"step": 1, "world_size": len(states), "ranks": ranks}
    with contextlib.redirect_stdout(io.StringIO()):
        _convert.write_checkpoint(folder, saved, _convert.load_client(os.environ["LOCKSTEP_CLIENT_LIB"]))
    return _written.Written(os.path.join(folder, "step_000000000001_epoch_1"))


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-2)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


def lbfgs(parameters):  # keeps lists of tensors in its state
    return torch.optim.LBFGS(parameters, max_iter=2)


def trained(make_optimizer, steps):
    """(model, optimizer, scheduler) of a job whose scheduler changes param_groups behind each step()."""
    net = nn.Linear(3, 2)
    optimizer = make_optimizer(net.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(steps):
        net(torch.ones(3)).sum().backward()
        optimizer.step()
        scheduler.step()
    return net, optimizer, scheduler


def filled(value):
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, value)
    return net


class Starter(unittest.TestCase):
    def setUp(self):
        if torch is None:
            self.skipTest("this Python has no torch")
        self.starter = FakeStarter()
        self.addCleanup(self.starter.close)

    def work(self, function, *arguments):
        value, stderr = in_worker(function, *arguments)
        self.assertEqual(stderr, "")
        return value
