"""Trains a byte-level GPT with DistributedDataParallel over gloo, and survives the loss of a rank bit for bit.

    PYTHONPATH=python python3 examples/train_gpt.py --steps 20          # alone
    lockstep run --nproc-per-node 4 examples/train_gpt.py --steps 300   # four ranks, kept in step
"""
import argparse
import contextlib
import json
import math
import os
import random
import sys
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import corpus
import fingerprint

try:
    import lockstep
except ImportError as error:
    sys.exit(f"{error}: start this with `lockstep run`, or add Lockstep's folder python/ to PYTHONPATH")

CONTEXT, WIDTH, HEADS, LAYERS, DROPOUT = 64, 96, 4, 4, 0.1  # 0.5 M parameters


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, DROPOUT, "gelu", batch_first=True,
                                           norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, norm=nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text):
        """Mean cross entropy, in nats, of each next byte. text: [batch, length + 1] byte values, length <= CONTEXT."""
        inputs, targets = text[:, :-1], text[:, 1:]
        length = inputs.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden = self.blocks(self.bytes(inputs) + self.places.weight[:length], mask=future)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


class Cursor:
    """Draws random passages of the text, from a generator of its own: nothing else can shift the order of the data."""

    def __init__(self, text, batch, seed):
        self.text = torch.from_numpy(text)
        self.batch = batch
        self.generator = torch.Generator().manual_seed(seed)

    def next(self):
        begins = torch.randint(len(self.text) - CONTEXT, (self.batch, 1), generator=self.generator)
        return self.text[begins + torch.arange(CONTEXT + 1)].long()

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


class Curve(list):
    """The loss of every step so far, as a part of the checkpoint: after a restart it goes on where it stood."""

    def state_dict(self):
        return {"losses": list(self)}

    def load_state_dict(self, state):
        self[:] = state["losses"]


def join_group():
    """Joins the ranks that torchrun's environment names; without one, this process is the whole group."""
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def warm_up(model, batch):
    """Runs two discarded iterations, so that DDP has the buckets it will keep before any gradient counts.

    DDP groups the gradients by the order of the parameters at first, and after the first backward by the order in
    which they became ready. The grouping decides in which order the ranks' values are added, hence the last bits of
    the sums. A restored process would take its first step with the first grouping, where the undisturbed one has long
    had the second. What the batch holds and how large it is doesn't matter, so a tiny one will do.
    """
    for _ in range(2):
        model(batch).backward()
        model.zero_grad(set_to_none=True)  # as train_step does


def seed_all(seed):
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def learning_rate(step, steps, warm=20):
    return min((step + 1) / warm, 0.55 + 0.45 * math.cos(math.pi * min(step / max(steps, 1), 1)))


def train_step(model, optimizer, scheduler, batch):
    """One step on this rank's batch; returns the loss averaged over all ranks, a tensor."""
    loss = model(batch)
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    return mean


def parse_flags():
    parser = argparse.ArgumentParser(description="Train a byte-level GPT on the King James Bible.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=12, help="passages of 64 bytes per rank and step (default 12)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", metavar="FILE", help="rank 0 writes digests of the final state and the losses as JSON")
    parser.add_argument("--log", metavar="FILE", help="rank 0 appends a line of JSON per step")
    return parser.parse_args()


def main():
    flags = parse_flags()
    torch.set_num_threads(1)  # with another number of threads, matrix products are summed in another order
    join_group()
    rank = dist.get_rank()

    seed_all(flags.seed)
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, flags.steps))
    cursor = Cursor(corpus.load(), flags.batch, flags.seed * 1000 + rank)
    curve = Curve()

    warm_up(model, torch.zeros(1, 9, dtype=torch.long))
    seed_all(flags.seed * 1000 + rank)  # after the warm-up, whose dropout has drawn from the generators
    ckpt = lockstep.Checkpoint({"model": model, "optimizer": optimizer, "scheduler": scheduler,
                                "data": cursor, "curve": curve})
    last = ckpt.restore()  # -1: nothing to resume from

    with open(flags.log, "a", buffering=1) if flags.log and rank == 0 else contextlib.nullcontext() as log:
        for step in range(last + 1, flags.steps):
            begin = time.monotonic()
            # Kept until main ends: were gloo's thread the last to let it go, it would wait for the interpreter, which waits for that thread.
            mean = train_step(model, optimizer, scheduler, cursor.next())
            loss = mean.item()
            curve.append(loss)
            ckpt.step(step, loss=loss)
            if rank == 0 and step % 10 == 0:
                print(f"step {step}  loss {loss:.4f}", flush=True)
            if log:
                log.write(json.dumps({"step": step, "loss": loss, "seconds": time.monotonic() - begin}) + "\n")
    if flags.out:
        fingerprint.write(flags.out, model, optimizer, curve)
    dist.destroy_process_group()  # gloo's threads must not outlive the interpreter


if __name__ == "__main__":
    main()
