"""A clean job in bad company: an hour of evaluations, saves and pauses that nobody announced (jobs/noisy.py), with other work on the cores.

Nothing in it is a fault, so a restart, or a rank that is named for certain, is wrong.
"""
import collections
import contextlib
import random
import subprocess
import sys
import threading

import figure
import session

RANKS = 4
HOUR_S = 3600
BURN = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


def measure(tools, quick):
    length, brisk = (150, 5) if quick else (HOUR_S, 1)
    with busy_cores(), session.Session(tools, [session.job("noisy.py"), str(length), str(brisk)], RANKS) as run:
        if code := run.process.wait(length + session.PATIENCE_S):
            raise RuntimeError(f"the job ended with status {code}:\n{run.said()[-2000:]}")
        noises = run.said().count("noise: ")
        starts = [event for event in run.events() if event.type == "epoch_spawned"]
        named = [event.payload["finding"] for event in run.events() if event.type == "suspected"]
    certain = [finding for finding in named if finding["certain"]]
    note = f"{RANKS} ranks for {length / 60:.0f} minutes, {noises} evaluations, saves and pauses of up to {90 / brisk:.0f} s, on one rank or all"
    return [
        figure.single("noisy clean job: restarts", "", len(starts) - 1, goal=0, note=note),
        figure.single("noisy clean job: named for certain", "", len(certain), goal=0, note=by_syndrome(certain)),
        figure.single("noisy clean job: named, not for certain", "", len(named) - len(certain),
                      note="warnings, with nothing done: " + by_syndrome(finding for finding in named if not finding["certain"])),
    ]


def by_syndrome(findings):
    counts = collections.Counter(finding["syndrome"] for finding in findings)
    return ", ".join(f"{count} {syndrome}" for syndrome, count in sorted(counts.items())) or "none"


@contextlib.contextmanager
def busy_cores():
    """Now and then, two processes that take what they can get."""
    over = threading.Event()
    chance = random.Random(1)

    def burn():
        while not over.wait(chance.uniform(20, 60)):
            burners = [subprocess.Popen([sys.executable, "-c", BURN, str(chance.uniform(5, 20))]) for _ in range(2)]
            for burner in burners:
                burner.wait()

    thread = threading.Thread(target=burn)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
