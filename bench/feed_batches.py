"""What a batch of the data service costs a job: until it has the next one, from one that is ahead; how many photos several jobs get that share a
service; and that a service is within its memory."""
import concurrent.futures
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time

import figure
import photos

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]

BATCH = 64


def measure(tools, quick):
    return list(figures(tools, quick))


def figures(tools, quick):
    os.environ["LOCKSTEP_BINARY"] = tools.lockstep
    from feed_service import Service

    count, seconds = (256, 3) if quick else (1024, 15)
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        photos.write(folder, count)
        with Service(folder, "--threads", 2, "--cache", "256M") as service:
            yield from next_batch(service, seconds)
        rates = {}
        for jobs in (1, 2, 4):
            with Service(folder, "--threads", 2, "--cache", "256M") as service:
                rates[jobs] = rate(service, jobs, seconds)
                cache = service.status()["cache"]
            yield figure.single(f"photos delivered to {jobs} jobs of one service, RandomResizedCrop(224)", "img/s", rates[jobs],
                                note=f"memory for items: {cache['peak_bytes'] / 1e6:.0f} of {cache['budget_bytes'] / 1e6:.0f} MB")


def next_batch(service, seconds):
    """Of a job that computes for long enough to leave the service ahead."""
    import lockstep.feed
    import torch

    torch.set_num_threads(1)
    matrix = torch.rand(512, 512)
    took, cpu = [], []
    with lockstep.feed.Loader("images", job="paced", batch=BATCH, seed=1, prefetch=8, socket=service.socket) as loader:
        for _ in range(8):
            loader.next_batch()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            rest = time.monotonic() + 0.12
            while time.monotonic() < rest:
                matrix = torch.tanh(matrix @ matrix)
            begin, cpu_begin = time.perf_counter(), time.thread_time()
            batch = loader.next_batch()
            tensors = batch.torch()
            took.append(1e6 * (time.perf_counter() - begin))
            cpu.append(1e6 * (time.thread_time() - cpu_begin))
            del batch, tensors
    yield figure.from_samples(f"the next batch of {BATCH}x224x224 from a service that is ahead, as tensors", "us", took, note=f"p99 {p99(took):.0f} us")
    yield figure.single("... the slowest of a hundred", "us", p99(took), goal=200)
    yield figure.from_samples("... of it, processor time of the job", "us", cpu)


def p99(samples):
    return sorted(samples)[int(0.99 * (len(samples) - 1))]


def take(socket, job, seconds):
    import lockstep.feed

    with lockstep.feed.Loader("images", job=job, batch=BATCH, seed=1, socket=socket) as loader:
        loader.next_batch()
        begin, items = time.monotonic(), 0
        while time.monotonic() - begin < seconds:
            items += len(loader.next_batch())
        return items / (time.monotonic() - begin)


def rate(service, jobs, seconds):
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        return sum(pool.map(take, [service.socket] * jobs, [f"job{i}" for i in range(jobs)], [seconds] * jobs))
