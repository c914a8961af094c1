"""The example's training steps in turns: waits on a FIFO for a number of steps, takes them, and says how long they took.

Two such jobs, one under Lockstep and one without, can so be measured by turns within seconds of each other. Each rank has
a FIFO of its own, so that none of them waits inside a collective between turns. Only the step clock is used: no checkpoints.
"""
import argparse
import json
import os
import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel

import lockstep

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples"))
import corpus  # noqa: E402
import train_gpt  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("turns", help="FIFO of rank R is TURNS.R; a line holds a number of steps, 0 to end")
    parser.add_argument("answers", help="FIFO to which rank 0 writes the seconds of each turn")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    train_gpt.join_group()
    rank = torch.distributed.get_rank()
    train_gpt.seed_all(1)
    model = DistributedDataParallel(train_gpt.GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    cursor = train_gpt.Cursor(corpus.load(), 12, rank)
    step = 0
    with open(f"{flags.turns}.{rank}") as turns, open(flags.answers, "w", buffering=1) as answers:
        for line in turns:
            torch.distributed.barrier()
            begin = time.perf_counter()
            for step in range(step + 1, step + 1 + int(line)):
                mean = train_gpt.train_step(model, optimizer, scheduler, cursor.next())
                lockstep.step(step, loss=mean.item())
            if rank == 0:
                answers.write(json.dumps({"seconds": time.perf_counter() - begin}) + "\n")
            if int(line) == 0:
                return


if __name__ == "__main__":
    main()
