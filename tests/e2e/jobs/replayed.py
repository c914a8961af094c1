"""A job that opts in to `lockstep replay`, with faults of machines that only it knows of.

LOCKSTEP_TEST_FAULTS="KIND:MACHINE[:CHANCE],...": in each step of a replay the gradients of that machine's ranks get one bit flipped (flip) or a
NaN (nan) before they are reduced; or the process kills itself (kill), hangs (hang), or leaves a child behind (child). CHANCE (1) is that of a
whole run, drawn anew for each.
"""
import os
import random
import signal
import subprocess
import sys
import time

import torch

import lockstep
from lockstep import _replay_model


def faults(replay):
    for text in filter(None, os.environ.get("LOCKSTEP_TEST_FAULTS", "").split(",")):
        kind, machine, *chance = text.split(":")
        shows = random.Random(f"{text} in run {replay.run}").random() < float(chance[0] if chance else 1)
        if int(machine) == replay.machine and shows:
            yield kind


def main():
    replay = lockstep.replay()
    if replay is None:
        print("an ordinary run")
        return
    if "--raise" in sys.argv:
        raise ValueError("planned, in every rank")
    kinds = list(faults(replay))

    def disturb(step, gradients):
        if "flip" in kinds:
            gradients.view(torch.int32)[7] ^= 1 << 20
        if "nan" in kinds:
            gradients[7] = float("nan")
        if "kill" in kinds:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang" in kinds:
            time.sleep(3600)
        if "child" in kinds and step == 0:
            subprocess.Popen(["sleep", "3600"], start_new_session=True)

    _replay_model.train(replay, disturb)


if __name__ == "__main__":
    main()
