"""A data-parallel job on data services that `lockstep run --feed` starts beside it: its ranks read the data set "small", those of --large read "large".

    lockstep run --nproc-per-node 3 --feed DIR:small --feed DIR2:large tests/e2e/jobs/fed_ddp.py --steps 60 --diary FOLDER --large 2 --slow 1:0.1 --die 0:20

--slow RANK:SECONDS: it sleeps in each forward; --own RANK:SECONDS: its own function does, on each batch; --die RANK:STEP: it kills itself there, in the first epoch. FOLDER gets a line for each batch of each rank.
"""
import argparse
import json
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lockstep
from lockstep.feed import CenterCrop, Loader


def main():
    words = argparse.ArgumentParser()
    words.add_argument("--steps", type=int, required=True)
    words.add_argument("--diary", required=True)
    words.add_argument("--batch", type=int, default=2)
    words.add_argument("--large", type=int, nargs="*", default=[])
    words.add_argument("--slow", default="-1:0")
    words.add_argument("--own", default="-1:0")
    words.add_argument("--die", default="-1:0")
    words = words.parse_args()
    slow, slow_s = words.slow.split(":")
    own, own_s = words.own.split(":")
    dying, dies_at = map(int, words.die.split(":"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 4, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 8))
    net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    if rank in words.large:
        loader = Loader("large", job=f"large-{rank}", transform=[CenterCrop(64, shorter=64)], batch=words.batch, seed=rank, rank=0, world=1, prefetch=2)
    else:
        functions = [lambda images: time.sleep(float(own_s)) or images] if rank == int(own) else []
        loader = Loader("small", job="small", transform=[CenterCrop(64, shorter=64), *functions], batch=words.batch, seed=1)
    checkpoint = lockstep.Checkpoint({"model": net, "optimizer": optimizer, "data": loader})
    done = checkpoint.restore()
    for step in range(done + 1, words.steps):
        if rank == dying and step == dies_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        batch = loader.next_batch()
        images, _ = batch.torch()
        if rank == int(slow):
            time.sleep(float(slow_s))
        loss = net(images.float() / 255).square().mean()
        with open(os.path.join(words.diary, f"{rank}"), "a") as diary:
            diary.write(json.dumps({"step": step, "epoch": batch.epoch, "ids": batch.ids.tolist()}) + "\n")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        checkpoint.step(step, loss=loss.detach())
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
