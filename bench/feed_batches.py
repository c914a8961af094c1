"""What a batch of the data service costs a job: until it has the next one, from one that is ahead; how many photos several jobs get that share a
service; and that a service is within its memory."""
import concurrent.futures
import multiprocessing
import os
import pathlib
import subprocess
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
            yield from reaped(service, 3 if quick else 20)
        rates = {}
        for jobs in (1, 2, 4):
            with Service(folder, "--threads", 2, "--cache", "256M") as service:
                rates[jobs] = rate(service, jobs, seconds)
                cache = service.status()["cache"]
            yield figure.single(f"photos delivered to {jobs} jobs of one service, RandomResizedCrop(224)", "img/s", rates[jobs],
                                note=f"memory for items: {cache['peak_bytes'] / 1e6:.0f} of {cache['budget_bytes'] / 1e6:.0f} MB")


def next_batch(service, seconds):
    """Of a job that computes for long enough to leave the service ahead; a batch that was not there yet says nothing about that."""
    import lockstep.feed
    import torch

    torch.set_num_threads(1)
    matrix = torch.rand(512, 512)
    took, cpu, late = [], [], 0
    with lockstep.feed.Loader("images", job="paced", batch=BATCH, seed=1, prefetch=8, socket=service.socket) as loader:
        for _ in range(8):
            loader.next_batch()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            rest = time.monotonic() + 0.12
            while time.monotonic() < rest:
                matrix = torch.tanh(matrix @ matrix)
            asked = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            begin, cpu_begin = time.perf_counter(), time.thread_time()
            batch = loader.next_batch()
            tensors = batch.torch()
            seconds_taken, cpu_taken = time.perf_counter() - begin, time.thread_time() - cpu_begin
            if batch.filled_ns > asked:
                late += 1
            else:
                took.append(1e6 * seconds_taken)
                cpu.append(1e6 * cpu_taken)
            del batch, tensors
    yield figure.from_samples(f"the next batch of {BATCH}x224x224 that is there, as tensors", "us", took, note=f"p99 {p99(took):.0f} us; {late} were not there yet")
    yield figure.single("... the slowest of a hundred", "us", p99(took), goal=200)
    yield figure.from_samples("... of it, processor time of the job", "us", cpu)


def reaped(service, count):
    """From kill -9 of a job until the service has taken everything back."""
    script = ("import sys, time; sys.path.insert(0, sys.argv[1]); import lockstep.feed\n"
              "loader = lockstep.feed.Loader('images', job='killed', batch=8, socket=sys.argv[2]); kept = loader.next_batch(); print('ready', flush=True)\n"
              "time.sleep(600)")
    took = []
    for _ in range(count):
        job = subprocess.Popen([sys.executable, "-c", script, str(ROOT / "python"), service.socket], stdout=subprocess.PIPE, text=True)
        job.stdout.readline()
        begin = time.monotonic()
        job.kill()
        while service.status()["jobs"]:
            pass
        took.append(1e3 * (time.monotonic() - begin))
        job.wait()
    yield figure.from_samples("a job is killed: until the service holds nothing for it", "ms", took, goal=1000, note="as `lockstep feed status` sees it")


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
