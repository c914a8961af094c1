"""All-reduces over one ring of all ranks and, if asked, over pairs of them, with a pause in between that stands for computing.

RANK and WORLD_SIZE come from whoever starts it. A rank of --slow takes --factor times the pause, from step --slow-from on; one of --stop stops itself
before a step.
"""
import argparse
import os
import signal
import subprocess
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--pause", type=float, default=0.05)
parser.add_argument("--elements", type=int, default=1 << 18)
parser.add_argument("--pairs", action="store_true")
parser.add_argument("--slow", type=int, default=-1)
parser.add_argument("--factor", type=float, default=1.5)
parser.add_argument("--slow-from", type=int, default=0)
parser.add_argument("--slow-since", help="file for the time at which it becomes slow, CLOCK_BOOTTIME in ns")
parser.add_argument("--stop", help="RANK:STEP")
parser.add_argument("--transfers", action="store_true", help="rank 0 also sends to rank 1")
parser.add_argument("--exchange", action="store_true", help="each rank sends to the one half a ring further on, and back")
parser.add_argument("--late", type=float, default=0, help="seconds by which rank 1 is late to receive that")
parser.add_argument("--empty", action="store_true", help="all-reduces of no elements, and of one rank, after each of all ranks")
parser.add_argument("--child", help="file for the LD_PRELOAD that a child of rank 0 sees")
options = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
pairs = [(a, b) for a in range(size) for b in range(a)] if options.pairs else []
groups = [dist.new_group(list(pair)) for pair in pairs]
alone = [dist.new_group([one]) for one in range(size if options.empty else 0)]
values = torch.ones(options.elements)
# Named, as they have to live while the job does (common.py's mean_loss says why).
nothing, few = values[:0], values[:8]
if options.child and rank == 0:
    seen = subprocess.run(["/bin/sh", "-c", "echo $LD_PRELOAD"], capture_output=True, text=True, check=True).stdout
    with open(options.child, "w") as file:
        file.write(seen)
for step in range(options.steps):
    if options.stop == f"{rank}:{step}":
        os.kill(os.getpid(), signal.SIGSTOP)
    slow = rank == options.slow and step >= options.slow_from
    if slow and step == options.slow_from and options.slow_since:
        with open(options.slow_since, "w") as file:
            print(time.clock_gettime_ns(time.CLOCK_BOOTTIME), file=file)
    time.sleep(options.pause * (options.factor if slow else 1))
    dist.all_reduce(values)
    if options.empty:
        dist.all_reduce(nothing)
        dist.all_reduce(few, group=alone[rank])
    for pair, group in zip(pairs, groups):
        if rank in pair:
            dist.all_reduce(values, group=group)
    if options.transfers and rank < 2:
        time.sleep(options.late if rank == 1 else 0)
        (dist.send if rank == 0 else dist.recv)(values[:64], 1 - rank)
    if options.exchange:
        other = (rank + size // 2) % size
        for sends in (rank < other, rank > other):
            (dist.send if sends else dist.recv)(values[:64], other)
    values.fill_(1)
