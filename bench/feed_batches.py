"""What a batch of the data service costs a job: until it has the next one, from one that is ahead; how many photos several jobs get that share a
service; and that a service is within its memory. Measured on CPU (jobs/feed_jobs.py)."""
import json
import subprocess

import figure
import session

RESIDENT_GOAL = 105  # percent of --cache
COUNTS, QUICK_COUNTS = (1024, 15, 20), (256, 3, 3)  # photos, seconds of each part, jobs that are killed


def measure(tools, quick):
    counts = map(str, QUICK_COUNTS if quick else COUNTS)
    answer = subprocess.run([tools.python, session.job("feed_jobs.py"), tools.binary, *counts], stdout=subprocess.PIPE, check=True, timeout=600)
    return list(figures(json.loads(answer.stdout)))


def figures(found):
    yield figure.from_samples("the next batch of 64x224x224 that is there, as tensors", "us", found["took"], goal=200, judged="p99", note=f"{found['late']} were not there yet")
    yield figure.from_samples("... of it, processor time of the job", "us", found["cpu"])
    yield figure.from_samples("a job is killed: until the service holds nothing for it", "ms", found["reaped"], goal=1000, note="as `lockstep feed status` sees it")
    for jobs, rate in found["rates"].items():
        peak, budget = found["memory"][jobs]
        yield figure.single(f"photos delivered to {jobs} jobs of one service, RandomResizedCrop(224)", "img/s", rate,
                            note=f"memory for items: {peak / 1e6:.0f} of {budget / 1e6:.0f} MB")
    for way, name in (("direct", "from the service"), ("relayed", "from a relay of it, by loopback")):
        of_way = found["ways"][way]
        yield figure.from_samples(f"batches of items that need no work, {name}", "MB/s", of_way["mb_per_s"],
                                  note=f"{of_way['cpu_ns_per_byte']:.2f} ns of processor time a byte beside the job")
    for budget, (peak, beyond) in found["resident"].items():
        yield figure.single(f"resident memory of the service, --cache {budget}M, images of up to 30 megapixels", "%", 100 * peak / (int(budget) << 20), goal=RESIDENT_GOAL,
                            note=f"{peak / 1e6:.1f} MB above what it had before jobs came, without rings; {beyond} items beyond the budget")
