"""A job that keeps a diary of its own: every rank appends {"rank", "epoch", "what": "loop" | "step", "step", "at_ns"} to FILE.RANK.

    observed.py FILE STEPS

`at_ns` is CLOCK_BOOTTIME, read by the script: what Lockstep says of the same moments can be compared with it.
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist

import lockstep

STEP_S = 0.05


def main():
    path, steps = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    rank, epoch = dist.get_rank(), int(os.environ["LOCKSTEP_EPOCH"])
    with open(f"{path}.{rank}", "a", buffering=1) as diary:
        def note(what, step):
            at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            diary.write(json.dumps({"rank": rank, "epoch": epoch, "what": what, "step": step, "at_ns": at}) + "\n")

        total = torch.zeros(1000)
        ckpt = lockstep.Checkpoint({"total": total})
        last = ckpt.restore()
        note("loop", last)
        for step in range(last + 1, steps):
            part = torch.ones(1000)
            dist.all_reduce(part)
            total += part
            time.sleep(STEP_S)
            ckpt.step(step)
            note("step", step)


main()
