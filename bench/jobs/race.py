"""The demo's training under any launcher, with the saving that goes with it: Lockstep's, or files at an interval.

Every rank appends JSON lines to --diary, a FIFO: {"rank", "pid"} when it begins, and rank 0 {"step"} after each step, {"saved_s"} after
each save to a file. SIGUSR2 makes a rank raise OSError. Who reads them stamps them: the race believes no launcher's own account.
"""
import argparse
import datetime
import errno
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "examples"))
sys.path.insert(0, os.path.join(HERE, ".."))

import corpus  # noqa: E402
import heartbeat  # noqa: E402
import train_gpt  # noqa: E402


class Files:
    """Each rank saves its state to a file every `every` steps; the newest step that all ranks have is loaded."""

    def __init__(self, folder, every, state, say):
        self.folder, self.every, self.state, self.say = folder, every, state, say
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def path(self, step, rank):
        return os.path.join(self.folder, f"{step:09d}.{rank}")

    def restore(self):
        found = {}
        for name in os.listdir(self.folder):
            if not name.endswith(".part"):
                found.setdefault(int(name.split(".")[0]), []).append(name)
        steps = torch.tensor([max([step for step, names in found.items() if len(names) == self.ranks], default=-1)])
        dist.all_reduce(steps, dist.ReduceOp.MIN)
        step = int(steps)
        if step >= 0:
            for name, value in torch.load(self.path(step, self.rank)).items():
                self.state[name].load_state_dict(value)
        return step

    def step(self, step, loss=None):
        if (step + 1) % self.every:
            return
        begin = time.monotonic()
        path = self.path(step, self.rank)
        torch.save({name: value.state_dict() for name, value in self.state.items()}, path + ".part")
        os.rename(path + ".part", path)
        self.say(saved_s=time.monotonic() - begin)
        self._forget(step)

    def _forget(self, step):
        """All but the two newest: a rank may die between two ranks' saves."""
        for old in range(step - 3 * self.every, step - self.every, self.every):
            try:
                os.unlink(self.path(old, self.rank))
            except OSError:
                pass


class Generators:
    def state_dict(self):
        return {"torch": torch.get_rng_state()}

    def load_state_dict(self, state):
        torch.set_rng_state(state["torch"])


def parse_flags():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--diary", required=True)
    parser.add_argument("--files", help="save there, instead of with lockstep.Checkpoint")
    parser.add_argument("--every", type=int, default=1, help="steps between two saves to files")
    parser.add_argument("--collective-timeout-s", type=float)
    parser.add_argument("--ballast-mb", type=int, default=0, help="of parameters per rank that are saved and never used")
    return parser.parse_args()


def join(flags):
    options = {"timeout": datetime.timedelta(seconds=flags.collective_timeout_s)} if flags.collective_timeout_s else {}
    dist.init_process_group("gloo", **options)


def main():
    flags = parse_flags()
    torch.set_num_threads(1)
    log = open(flags.diary, "a", buffering=1)
    rank = int(os.environ["RANK"])

    def say(**line):
        if rank == 0 or "pid" in line:
            log.write(json.dumps(line) + "\n")

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    signal.signal(signal.SIGUSR2, fail)
    say(rank=rank, pid=os.getpid())
    join(flags)
    beat = heartbeat.sender(rank)
    train_gpt.seed_all(1)
    model = DistributedDataParallel(train_gpt.GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: train_gpt.learning_rate(step, flags.steps))
    cursor = train_gpt.Cursor(corpus.load(), 12, 1000 + rank)
    train_gpt.warm_up(model, torch.zeros(1, 9, dtype=torch.long))
    train_gpt.seed_all(1000 + rank)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "data": cursor}
    if flags.ballast_mb:
        state["ballast"] = nn.ParameterList([nn.Parameter(torch.ones(flags.ballast_mb * 250_000))])
    if flags.files:
        keeper = Files(flags.files, flags.every, {**state, "generators": Generators()}, say)
    else:
        import lockstep

        keeper = lockstep.Checkpoint(state)
    for step in range(keeper.restore() + 1, flags.steps):
        mean = train_gpt.train_step(model, optimizer, scheduler, cursor.next())
        keeper.step(step, loss=mean.item())
        beat()
        say(step=step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
