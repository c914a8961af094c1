"""The ways in which a rank can break. Every fault is real: nothing here asks Lockstep for anything."""
import argparse
import collections
import ctypes
import io
import itertools
import json
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist

PLACES = ("forward", "update", "loss", "saved")
SKIP = "skip"

Fault = collections.namedtuple("Fault", "kind number rank step place epoch")


def epoch():
    """Which start of the job this is, from 1; without Lockstep the first and only one."""
    return int(os.environ.get("LOCKSTEP_EPOCH", "1"))


def parse(text):
    """KIND:RANK:STEP[:PLACE[:EPOCH]] as a Fault."""
    match = re.fullmatch(r"([a-z-]+?)(\d*):(\d+):(\d+)(?::([a-z]+)(?::(\d+))?)?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"expected KIND:RANK:STEP[:PLACE[:EPOCH]], found {text!r}")
    kind, number, rank, step, place, when = match.groups()
    if kind not in KINDS:
        raise argparse.ArgumentTypeError(f"no fault {kind!r}: expected one of {', '.join(KINDS)}")
    place = place or ("loss" if kind == SKIP else "forward")
    if place not in PLACES:
        raise argparse.ArgumentTypeError(f"no place {place!r}: expected one of {', '.join(PLACES)}")
    when = None if kind == "raise-always" else int(when or 1)
    return Fault(kind, int(number) if number else None, int(rank), int(step), place, when)


class Breaker:
    """Strikes when this rank reaches the step and place of a fault."""

    def __init__(self, planned, job, leftovers=None):
        self.planned = [fault for fault in planned if fault.rank == job.rank and fault.epoch in (None, epoch())]
        self.job = job
        self.leftovers = leftovers

    def at(self, place, step):
        """Returns what the fault returns, if one strikes and returns at all."""
        result = None
        for fault in self.planned:
            if (fault.place, fault.step) == (place, step):
                result = KINDS[fault.kind](self, fault)
        return result


def kill(breaker, fault):
    os.kill(os.getpid(), signal.SIGKILL)


def nan(breaker, fault):
    """A gradient that was averaged already becomes NaN: in the place `update`, this step's loss is still a number."""
    next(breaker.job.model.parameters()).grad.fill_(float("nan"))


def stop(breaker, fault):
    os.kill(os.getpid(), signal.SIGSTOP)


def abort(breaker, fault):
    os.abort()


def exit_with(breaker, fault):
    sys.exit(1 if fault.number is None else fault.number)


def raise_error(breaker, fault):
    raise ValueError(f"planned fault at step {fault.step}")


def spin_in_python(breaker, fault):
    """Bytecode without end: signal handlers still run, and other threads get a turn every 5 ms."""
    while True:
        pass


def spin_with_gil(breaker, fault):
    """A C loop without end that never gives up the GIL: no Python code runs in this process again, no handler."""
    collections.deque(itertools.repeat(None), maxlen=0)


def block_in_c(breaker, fault):
    """Locks a mutex twice. A futex wait is resumed after a signal, so that nothing but death ends it."""
    mutex = ctypes.create_string_buffer(64)  # all zeros: PTHREAD_MUTEX_INITIALIZER; 40 bytes on x86-64, 48 on arm64
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def spin_in_c(breaker, fault):
    """Locks a spin lock twice: full load in C, with the GIL free."""
    lock = ctypes.c_int()
    libc = ctypes.CDLL(None)
    libc.pthread_spin_init(ctypes.byref(lock), 0)
    libc.pthread_spin_lock(ctypes.byref(lock))
    libc.pthread_spin_lock(ctypes.byref(lock))


def skip(breaker, fault):
    """Tells the caller to leave out one collective."""
    return SKIP


def broadcast(breaker, fault):
    """Everybody believes that the next rank is the source: if all do, all wait in one collective and nobody is to blame."""
    dist.broadcast(torch.zeros(1), src=(breaker.job.rank + 1) % dist.get_world_size())


def sleep(breaker, fault):
    time.sleep(seconds(fault))


def nap(breaker, fault):
    time.sleep(fault.number / 1000)


def evaluate(breaker, fault):
    """A long evaluation on one rank: no fault, though the others wait in their next collective."""
    model = breaker.job.model.module
    generator = torch.Generator().manual_seed(0)  # of its own: the run must stay equal to an undisturbed one
    inputs = torch.randn(256, model.layers[0].in_features, generator=generator)
    model.eval()
    end = time.monotonic() + seconds(fault)
    with torch.no_grad():
        while time.monotonic() < end:
            model.layers(inputs)
    model.train()


def await_signal(breaker, fault):
    """Waits for a child's signal, which comes: no fault either."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    child = subprocess.Popen(["sh", "-c", f"sleep {seconds(fault)}; kill -USR1 {os.getpid()}"])
    signal.sigwait([signal.SIGUSR1])
    child.wait()


def save(breaker, fault):
    """A slow save on one rank: no fault either."""
    end = time.monotonic() + seconds(fault)
    while time.monotonic() < end:
        torch.save([breaker.job.model.state_dict(), breaker.job.optimizer.state_dict()], io.BytesIO())


def seconds(fault):
    return 30 if fault.number is None else fault.number


def grandchild(breaker, fault):
    """Leaves behind what a careless job leaves behind, and dies: children, one in a session of its own and one
    orphaned by a parent that is gone, an inherited listening socket, and shared memory, POSIX and System V."""
    listener = socket.create_server(("127.0.0.1", 0))
    inherit = {"pass_fds": [listener.fileno()], "stdout": subprocess.DEVNULL}
    own_session = subprocess.Popen(["sleep", "86400"], start_new_session=True, **inherit)
    script = "setsid sleep 86400 >/dev/null & echo $!"
    orphan = int(subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=True).stdout)
    memory = f"/dev/shm/lockstep-e2e-{os.getpid()}"
    with open(memory, "wb+") as file:
        file.truncate(4096)
        mapped = mmap.mmap(file.fileno(), 4096)
    mapped[0] = 1
    segment = ctypes.CDLL(None).shmget(0, 4096, 0o600)
    note = {"pids": [own_session.pid, orphan], "port": listener.getsockname()[1], "memory": memory, "segment": segment}
    if breaker.leftovers:
        with open(breaker.leftovers, "w") as file:
            json.dump(note, file)
    kill(breaker, fault)


def ignore_term(breaker, fault):
    """Goes on, deaf to SIGTERM: to be combined with a fault that makes Lockstep end this process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


KINDS = {
    "kill": kill,
    "nan": nan,
    "stop": stop,
    "abort": abort,
    "exit": exit_with,
    "raise": raise_error,
    "raise-always": raise_error,
    "gil": spin_in_python,
    "native": block_in_c,
    "native-gil": spin_with_gil,
    "native-spin": spin_in_c,
    "skip": skip,
    "broadcast": broadcast,
    "sleep": sleep,
    "nap": nap,
    "eval": evaluate,
    "await-signal": await_signal,
    "save": save,
    "grandchild": grandchild,
    "ignore-term": ignore_term,
}
