"""What the jobs of feed_batches.py do and measure, in a Python that has torch and Pillow: prints {"took", "cpu" (us), "late", "reaped" (ms), "rates" (img/s)
and "memory" ([peak, budget] in bytes) by number of jobs, "resident" ({budget in MB: [peak in bytes, items beyond the budget]}),
"ways" (feed_relayed.py)} as JSON.

usage: feed_jobs.py LOCKSTEP PHOTOS SECONDS KILLS"""
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python"), str(ROOT / "bench")]

BATCH = 64
JOBS = (1, 2, 4)
LARGE = {"plain": (3000, 2000), "progressive": (3000, 2000), "larger": (4000, 3000), "largest": (6708, 4472)}  # 6, 6, 12 and 30 megapixels
BUDGETS_MB = (32, 64, 128, 256)


def main():
    os.environ["LOCKSTEP_BINARY"] = sys.argv[1]
    import feed_relayed
    import photos
    from feed_service import Service

    count, seconds, kills = (int(word) for word in sys.argv[2:])
    found = {"rates": {}, "memory": {}}
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        photos.write(folder, count)
        with Service(folder, "--threads", 2, "--cache", "256M") as service:
            found.update(next_batches(service, seconds), reaped=reaped(service, kills))
        for jobs in JOBS:
            with Service(folder, "--threads", 2, "--cache", "256M") as service:
                found["rates"][jobs] = rate(service, jobs, seconds)
                cache = service.status()["cache"]
                found["memory"][jobs] = [cache["peak_bytes"], cache["budget_bytes"]]
        enlarge(folder)
        found["resident"] = {budget: resident(folder, budget, seconds) for budget in BUDGETS_MB}
    found["ways"] = feed_relayed.rates(seconds)
    print(json.dumps(found))


def enlarge(folder):
    """Adds images that are much larger than the photos."""
    from PIL import Image

    import photos

    with Image.open(photos.photos()[0]) as image:
        image = image.convert("RGB")
        for name, size in LARGE.items():
            place = pathlib.Path(folder, name)
            place.mkdir()
            image.resize(size).save(place / "0.jpg", quality=90, progressive=name == "progressive")


def resident(folder, budget, seconds):
    """Of a service with two jobs, one ten times slower than the other: anonymous memory, in which rings are not, above what it had before them."""
    import lockstep.feed
    from feed_service import Service

    with Service(folder, "--threads", 2, "--cache", f"{budget}M") as service, Watched(service.process.pid) as watched:
        loaders = [lockstep.feed.Loader("images", job=job, batch=BATCH, seed=1, socket=service.socket) for job in ("fast", "slow")]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(10):
                loaders[0].next_batch()
            loaders[1].next_batch()
        for loader in loaders:
            loader.close()
        beyond = service.status()["cache"]["beyond_budget"]
    return [watched.peak - watched.before, beyond]


class Watched:
    """A process's anonymous resident memory: before, and the most since, in bytes, looked at 200 times a second."""

    def __init__(self, pid):
        self.path = f"/proc/{pid}/status"
        self.before = self.peak = self.now()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def now(self):
        with open(self.path) as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("RssAnon"))

    def watch(self):
        while not self.over.wait(0.005):
            self.peak = max(self.peak, self.now())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def next_batches(service, seconds):
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
    return {"took": took, "cpu": cpu, "late": late}


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
    return took


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


if __name__ == "__main__":
    main()
