"""Adam over flat parameters that ranks share by equal ranges, as ZeRO does: no rank has what another has. The same numbers, bit for bit, in a
world of any size, for every rank sees the same batch, and what is added up is added in one order.

    lockstep run --nproc-per-node 4 tests/e2e/jobs/zero.py --steps 20 --log steps.jsonl
"""
import argparse
import contextlib
import json
import os
import time
import zlib

import torch
import torch.distributed as dist

import lockstep
import lockstep.reshape

from common import Pace

ELEMENTS = 1003  # no multiple of anything: there is padding in every world


def parse_flags():
    parser = argparse.ArgumentParser(description="Train a flat vector, a share of it on each rank.")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--step-time", type=float, default=0, metavar="S", help="steps last at least S seconds")
    parser.add_argument("--log", metavar="FILE", help="rank 0 appends a line of JSON per step: \"loss\" is the checksum of all parameters")
    parser.add_argument("--uncut", action="store_true", help="restore() without reshape=")
    return parser.parse_args()


class Shares:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.buckets = lockstep.reshape.Buckets([ELEMENTS])
        size = self.buckets.shard_size(self.world)
        self.weights, self.mean, self.square = (torch.zeros(size, dtype=torch.float64) for _ in range(3))
        self.schedule = {"step": 0, "rate": torch.tensor(0.1, dtype=torch.float64)}

    def state(self):
        return {"weights": self.weights, "mean": self.mean, "square": self.square, "schedule": self.schedule}

    def cut(self, written):
        """This rank's part of what a world of another size wrote."""
        for name in ("weights", "mean", "square"):
            self.state()[name].copy_(written.load_flat(name, self.buckets, self.rank, self.world, as_torch=True))
        self.schedule.update(written.value("schedule"))

    def step(self):
        """The checksum of all parameters after it."""
        whole = self.gathered()
        target = torch.sin(torch.arange(ELEMENTS, dtype=torch.float64) * (1 + self.schedule["step"] % 7))
        gradient = torch.zeros(self.weights.numel() * self.world, dtype=torch.float64)
        gradient[:ELEMENTS] = whole - target
        own = gradient[self.rank * self.weights.numel():][: self.weights.numel()]
        self.mean.mul_(0.9).add_(own, alpha=0.1)
        self.square.mul_(0.99).addcmul_(own, own, value=0.01)
        self.weights.sub_(self.schedule["rate"] * self.mean / (self.square.sqrt() + 1e-6))
        self.schedule["step"] += 1
        self.schedule["rate"] = self.schedule["rate"] * 0.999
        return zlib.crc32(self.gathered().numpy().tobytes())

    def gathered(self):
        shares = [torch.empty_like(self.weights) for _ in range(self.world)]
        dist.all_gather(shares, self.weights)
        return torch.cat(shares)[:ELEMENTS]


def main():
    flags = parse_flags()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    shares = Shares()
    ckpt = lockstep.Checkpoint(shares.state())
    last = ckpt.restore() if flags.uncut else ckpt.restore(reshape=shares.cut)
    assert last + 1 == shares.schedule["step"], (last, shares.schedule)
    pace = Pace(flags.step_time)
    with open(flags.log, "a", buffering=1) if flags.log and shares.rank == 0 else contextlib.nullcontext() as log:
        for step in range(last + 1, flags.steps):
            checksum = shares.step()
            ckpt.step(step)
            pace.wait()
            if log:
                at = time.clock_gettime(time.CLOCK_BOOTTIME)
                log.write(json.dumps({"step": step, "loss": checksum, "at": at, "epoch": int(os.environ.get("LOCKSTEP_EPOCH", 1)),
                                      "world": shares.world}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
