"""A job whose ranks break in the way that a signal asks for: the bench strikes from outside, at any moment of a step.

    victim.py KIND:SIGNAL...
"""
import collections
import ctypes
import itertools
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import lockstep

STEP_S = 0.03


def fail(number, frame):
    raise ValueError("asked to fail")


def leave(number, frame):
    os._exit(3)


def hold_gil(number, frame):
    """A loop in C that never gives up the GIL."""
    collections.deque(itertools.repeat(None), maxlen=0)


def block(number, frame):
    """A mutex that is locked twice."""
    mutex = ctypes.create_string_buffer(64)
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


KINDS = {"exception": fail, "exit": leave, "hold-gil": hold_gil, "block": block}


def main():
    for word in sys.argv[1:]:
        kind, number = word.split(":")
        signal.signal(int(number), KINDS[kind])
    dist.init_process_group("gloo")
    total = torch.zeros(1000)
    ckpt = lockstep.Checkpoint({"total": total})
    for step in itertools.count(ckpt.restore() + 1):
        part = torch.ones(1000)
        dist.all_reduce(part)
        total += part
        time.sleep(STEP_S)
        ckpt.step(step)


main()
