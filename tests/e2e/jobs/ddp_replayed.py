"""jobs/ddp.py on machines of which one is bad, as only a replay shows: the one with LOCKSTEP_TEST_BAD in its environment, which is "bits" where it
computes wrong ones, or "dies" where its ranks do.
"""
import os
import signal

import torch

import ddp
import lockstep
from lockstep import _replay_model


def disturb(_, gradients):
    bad = os.environ.get("LOCKSTEP_TEST_BAD")
    if bad == "bits":
        gradients.view(torch.int32)[7] ^= 1 << 20
    if bad == "dies":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    replay = lockstep.replay()
    _replay_model.train(replay, disturb) if replay else ddp.main()
