"""A small DistributedDataParallel job (or, with --sharded, one of FSDP2) that can break in many ways on purpose.

    lockstep run --nproc-per-node 4 tests/e2e/jobs/ddp.py --steps 20 --out result.json --fault kill:2:7

--fault KIND:RANK:STEP[:PLACE[:EPOCH]] may be given several times. The kinds are in faults.py; a number may follow one
(exit3, sleep90). PLACE is forward (default), update (between backward and optimizer.step), loss (before the mean of the
loss is taken) or saved (just after the checkpoint). EPOCH (default 1) is the only one in which the fault strikes.
"""
import argparse
import contextlib
import json
import sys
import time

import torch
import torch.distributed as dist

import lockstep

import faults
from common import Job, Pace
from sharded import ShardedJob


def parse_flags():
    parser = argparse.ArgumentParser(description="Train a tiny model, and break on purpose.")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--width", type=int, default=64, help="of the hidden layers: the state grows with its square")
    parser.add_argument("--sharded", action="store_true", help="by fully_shard, which torch 2 has")
    parser.add_argument("--replicas", action="store_true", help="say that any rank's state is right for any other")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="save the state after each N steps only")
    parser.add_argument("--restartable", action="store_true", help="survivors of a fault keep their process")
    parser.add_argument("--step-time", type=float, default=0, metavar="S", help="steps last at least S seconds")
    parser.add_argument("--slow", metavar="PLACE:RANK:S", help="in each step, before loading data or in forward, that rank takes S seconds more")
    parser.add_argument("--out", metavar="FILE", help="rank 0 writes the digests of the final state")
    parser.add_argument("--log", metavar="FILE", help="rank 0 appends a line of JSON per step")
    parser.add_argument("--fault", action="append", default=[], type=faults.parse, help="see above")
    parser.add_argument("--data-workers", type=int, default=0, metavar="N", help="each rank starts N of torch's DataLoader, which idle")
    parser.add_argument("--leftovers", metavar="FILE", help="where the fault `grandchild` notes what it leaves behind")
    return parser.parse_args()


def slowness(text, rank):
    """(place, seconds) of this rank."""
    place, who, seconds = (text or "nowhere:-1:0").split(":")
    return (place, float(seconds)) if int(who) == rank else ("nowhere", 0)


def main():
    flags = parse_flags()
    kind = ShardedJob if flags.sharded else Job
    job = kind(flags.seed, width=flags.width)
    ckpt = lockstep.Checkpoint(job.parts(), every=flags.every, replicas=flags.replicas)
    last = ckpt.restore()
    slow_place, slow_s = slowness(flags.slow, job.rank)
    if slow_place == "forward":
        job.model.module.register_forward_pre_hook(lambda *_: time.sleep(slow_s))
    batches = iter(torch.utils.data.DataLoader(range(1_000_000), num_workers=flags.data_workers)) if flags.data_workers else iter([0])
    next(batches)
    breaker = faults.Breaker(flags.fault, job, flags.leftovers)
    pace = Pace(flags.step_time)
    with open(flags.log, "a", buffering=1) if flags.log and job.rank == 0 else contextlib.nullcontext() as log:
        for step in range(last + 1, flags.steps):
            breaker.at("forward", step)
            if slow_place == "data":
                time.sleep(slow_s)
            loss = job.backward()
            breaker.at("update", step)
            job.update()
            if breaker.at("loss", step) != faults.SKIP:
                loss = job.mean_loss(loss)
            job.curve.append(float(loss))
            ckpt.step(step, loss=float(loss))
            breaker.at("saved", step)
            pace.wait()
            if log:
                at = time.clock_gettime(time.CLOCK_BOOTTIME)  # the clock of Lockstep's own records
                log.write(json.dumps({"step": step, "loss": float(loss), "at": at, "epoch": faults.epoch()}) + "\n")
    if flags.out:
        job.write(flags.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    lockstep.restartable(main)() if "--restartable" in sys.argv else main()
