"""What a checkpoint of 400 MB in all costs at every step, and how fast it is copied."""
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

import figure
import session

MEGABYTES = 400  # in all
CROWD = 4        # ranks, on fewer cores


def measure(tools, quick):
    cores = max(2, min(4, os.cpu_count()))
    figures = blocking(tools, cores, (2, 4) if quick else (12, 9), "checkpoint", goal=5)
    if cores < CROWD:
        figures += blocking(tools, CROWD, (2, 4) if quick else (6, 9), f"{CROWD} ranks on {cores} cores: checkpoint", goal=None)
    return [*figures, *copy_rate(tools, 3 if quick else 9)]


def blocking(tools, ranks, size, name, goal):
    """What a checkpoint at every step costs `ranks` ranks; size: (pairs of blocks, steps in a block)."""
    pairs, steps = size
    rows, counts = run_job(tools, ranks, pairs, steps)
    taken = [row for rank in rows for row in rank if row["with"]]
    blocked = [1000 * (row["call_s"] + row["wait_s"]) for row in taken]
    control = [1000 * row["call_s"] for rank in rows for row in rank if not row["with"]]
    ratios = [100 * (ratio - 1) for ratio in pair_ratios(rows[0], pairs)]
    plain = statistics.median([row["seconds"] for row in rows[0] if not row["with"]])
    what = (f"{ranks} ranks x {MEGABYTES // ranks} MB, copied beside a step of {plain:.2f} s; "
            f"{counts['taken']} taken, {counts['skipped']} skipped, {counts['torn']} torn")
    call, wait = (statistics.median([1000 * row[part] for row in taken]) for part in ("call_s", "wait_s"))
    return [
        figure.from_samples(f"{name} blocks a step", "ms", blocked, goal=goal, judged="p99",
                            note=f"{what}; median of Checkpoint.step {call:.2f} ms, of the wait before the optimizer {wait:.3f} ms"),
        figure.from_samples("control: 0.4 ms of work in its place", "ms", control, judged="p99",
                            note="in the steps without a checkpoint: what waiting for a turn on the cores costs by itself"),
        figure.from_ratios(f"{name} inflates a step", "%", ratios, goal=goal, note=f"{pairs} pairs of blocks of {steps} steps"),
    ]


def run_job(tools, ranks, pairs, steps):
    """(rows of each rank, the newest counts of checkpoints)."""
    folder = tempfile.mkdtemp(prefix="lockstep-bench-")
    out = os.path.join(folder, "result")
    command = [session.job("large_state.py"), "--megabytes", str(MEGABYTES / ranks), "--pairs", str(pairs), "--steps", str(steps), "--out", out]
    counts = {}
    with session.Session(tools, command, ranks) as run:
        while run.process.poll() is None:
            counts = newest_counts(run) or counts
            time.sleep(1)
        if run.process.returncode != 0:
            raise RuntimeError(f"the job failed:\n{run.said()[-2000:]}")
    rows = [read(f"{out}.{rank}") for rank in range(ranks)]
    shutil.rmtree(folder)
    return rows, counts


def newest_counts(run):
    try:
        status = run.status()
    except RuntimeError:
        return None  # it has just ended
    return status and status["checkpoint"]


def read(path):
    with open(path) as file:
        return json.load(file)


def pair_ratios(rows, pairs):
    """Median step with, over median step without, for each pair of neighbouring blocks."""
    ratios = []
    for pair in range(pairs):
        medians = [statistics.median([row["seconds"] for row in rows if row["block"] == pair and row["with"] == kind]) for kind in (True, False)]
        ratios.append(medians[0] / medians[1])
    return ratios


def copy_rate(tools, runs):
    """Each run is a process of its own: where its memory lies makes a difference that rounds within it don't show."""
    answers = [json.loads(subprocess.run([tools.copy_rate], stdout=subprocess.PIPE, check=True).stdout) for _ in range(runs)]
    ratios = [100 * answer["crc_to_nontemporal"] for answer in answers]
    rates = {name: statistics.median([answer[name]["median"] for answer in answers]) for name in ("memcpy", "nontemporal", "nontemporal_crc32c")}
    spread = ", ".join(f"{name} {rate:.2f} GB/s" for name, rate in rates.items())
    return [figure.from_samples("copy with CRC, of the non-temporal copy rate", "%", ratios, goal=80, at_least=True,
                                note=f"one thread, {answers[0]['bytes'] // 1_000_000} MB, {runs} processes of {answers[0]['rounds']} interleaved rounds; "
                                     f"medians: {spread}")]
