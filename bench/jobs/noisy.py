"""A healthy job that often looks ill: unannounced evaluations, saves and pauses, on one rank or all, by a plan that all ranks draw alike.

    noisy.py SECONDS BRISK

Nothing of it is told to Lockstep but the steps. BRISK times as short as in the field is every disturbance (1: as in the field). Each
begins with a line "noise: KIND on RANKS for S s".
"""
import gc
import os
import random
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

import lockstep

STEP_S = 0.1
STEPS_BETWEEN = (20, 100)
WIDTH = 256


def evaluate(seconds):
    """Forward passes, as far as the job's share of a core goes."""
    end = time.monotonic() + seconds
    layer = torch.ones(WIDTH, WIDTH)
    with torch.no_grad():
        while time.monotonic() < end:
            layer @ layer
            time.sleep(0.002)


def save(seconds):
    """To a slow disk."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < end:
            file.seek(0)
            torch.save(torch.ones(WIDTH, WIDTH), file)
            os.fsync(file.fileno())
            time.sleep(0.05)


def compile_something(seconds):
    """By a compiler that is a process of its own, for which the rank waits."""
    subprocess.run(["sleep", str(seconds)], check=True)


def read_slowly(seconds):
    """From a store that keeps it waiting: blocked in read(2)."""
    with subprocess.Popen(["sh", "-c", f"sleep {seconds}; echo done"], stdout=subprocess.PIPE) as store:
        store.stdout.read()


def collect_garbage(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rings = [[] for _ in range(100_000)]
        for ring in rings:
            ring.append(ring)
        del rings
        gc.collect()


# Kind: (what, seconds in the field, how often it strikes all ranks at once)
KINDS = {
    "evaluation": (evaluate, 90, 0.6),
    "save": (save, 30, 0.3),
    "sleep": (time.sleep, 45, 0.2),
    "compiler": (compile_something, 60, 0.5),
    "slow read": (read_slowly, 40, 0.2),
    "garbage": (collect_garbage, 8, 0.1),
}


def plan(ranks):
    """Endlessly (step, kind, seconds, ranks struck)."""
    chance = random.Random(1)
    step = 0
    while True:
        for kind in chance.sample(sorted(KINDS), len(KINDS)):
            step += chance.randint(*STEPS_BETWEEN)
            _, seconds, together = KINDS[kind]
            struck = range(ranks) if chance.random() < together else [chance.randrange(ranks)]
            yield step, kind, seconds * chance.uniform(0.5, 1), list(struck)


def main():
    length, brisk = float(sys.argv[1]), float(sys.argv[2])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    ckpt = lockstep.Checkpoint({"total": torch.zeros(1000)})
    ckpt.restore()
    end = time.monotonic() + length
    noises = plan(dist.get_world_size())
    due, kind, seconds, struck = next(noises)
    step = 0
    while True:
        late = torch.tensor([float(time.monotonic() > end)])
        dist.all_reduce(late)
        if late.item():
            return
        if step == due:
            if rank == 0:
                print(f"noise: {kind} on {struck} for {seconds / brisk:.0f} s", flush=True)
            if rank in struck:
                KINDS[kind][0](seconds / brisk)
            due, kind, seconds, struck = next(noises)
        time.sleep(STEP_S)
        ckpt.step(step)
        step += 1


main()
