"""A step of about a second over a large state, half computing and half waiting, by turns with and without a checkpoint.

With --unique no rank has anything in common with another or with its step before; with --rest 0 it only computes.

Rank R writes OUT.R: for each step whether a checkpoint was taken before it, its seconds, and how long it was blocked, once in
Checkpoint.step and once before the optimizer's own work began. Work and rest are fixed amounts, not padding up to a second:
what a checkpoint costs shows in full.
"""
import argparse
import json
import time

import torch
import torch.distributed as dist

import lockstep

BUSY_S = 0.15
CALL_CPU_S = 0.0004  # about what Checkpoint.step computes
MATRIX = torch.randn(384, 384)


class TimedSGD(torch.optim.SGD):
    """Notes when its own work begins: what passes between the call and that moment is Lockstep's wait."""

    began = 0.0

    def step(self, closure=None):
        self.began = time.perf_counter()
        return super().step(closure)


def work(products):
    result = MATRIX
    for _ in range(products):
        result = torch.tanh(result @ MATRIX)


def burn(seconds):
    """What a call of as much work would take at this place: four ranks on two cores wait for each other's turns anyway."""
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        pass


def products_in(seconds):
    """How many products take this much CPU time; the same number on all ranks."""
    begin, count = time.thread_time(), 0
    while time.thread_time() - begin < seconds:
        work(5)
        count += 5
    shared = torch.tensor([count])
    dist.broadcast(shared, 0)
    return int(shared)


class Rank:
    def __init__(self, megabytes, unique, rest):
        values = int(megabytes * 1e6) // 8  # a parameter and its momentum, 4 bytes each
        generator = torch.Generator().manual_seed(dist.get_rank())
        start, grad = (torch.rand(values, generator=generator) for _ in range(2)) if unique else (torch.ones(values), torch.full((values,), 1e-6))
        self.model = torch.nn.ParameterList([torch.nn.Parameter(start)])
        self.model[0].grad = grad
        self.rest = rest
        self.optimizer = TimedSGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.optimizer.step()  # the momentum comes to be
        self.products = products_in(BUSY_S)
        self.ckpt = lockstep.Checkpoint({"model": self.model, "optimizer": self.optimizer})
        self.ckpt.restore()
        self.rows = []
        self.step = 0

    def one_step(self, with_checkpoint):
        begin = time.perf_counter()
        if with_checkpoint:
            self.ckpt.step(self.step)
        else:
            lockstep.step(self.step)
            burn(CALL_CPU_S)
        called = time.perf_counter() - begin
        work(self.products)
        time.sleep(self.rest)
        before = time.perf_counter()
        self.optimizer.step()
        waited = self.optimizer.began - before
        dist.all_reduce(torch.zeros(1))
        self.step += 1
        return {"with": with_checkpoint, "seconds": time.perf_counter() - begin, "call_s": called, "wait_s": waited}

    def block(self, number, steps, with_checkpoint):
        for _ in range(steps):
            self.rows.append({"block": number, **self.one_step(with_checkpoint)})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=100, help="of state per rank")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=9, help="per block")
    parser.add_argument("--rest", type=float, default=0.55, help="seconds of each step")
    parser.add_argument("--unique", action="store_true")
    parser.add_argument("--out", required=True)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = Rank(flags.megabytes, flags.unique, flags.rest)
    for warm_up in (True, False):
        rank.block(0, 3, warm_up)
    rank.rows.clear()
    for pair in range(flags.pairs):
        for with_checkpoint in ((True, False) if pair % 2 == 0 else (False, True)):
            rank.block(pair, flags.steps, with_checkpoint)
    with open(f"{flags.out}.{dist.get_rank()}", "w") as file:
        json.dump(rank.rows, file)


if __name__ == "__main__":
    main()
