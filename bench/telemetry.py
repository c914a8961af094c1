"""How fast a coordinator judges what many ranks tell, and how often it names somebody in healthy jobs (telemetry.cc). Simulated."""
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys

import figure

RANKS = 16_384
JOB_DAYS = 24
PARTS = 8  # jobs of their own: each core takes one after the other
LOOK_EVERY_S = 5  # control/judge.cc
ONSETS = 20


def measure(tools, quick):
    days = JOB_DAYS / 100 if quick else JOB_DAYS
    rate, scale, ticks = run(tools, "rate"), run(tools, "scale", RANKS), run(tools, "ticks", RANKS)
    onsets = [run(tools, "onset", seed) for seed in range(3 if quick else ONSETS)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as cores:
        answers = list(cores.map(lambda seed: healthy_days(tools, days / PARTS, seed), range(1, PARTS + 1)))
    found, certain, windows = (sum(answer[name] for answer in answers) for name in ("found", "certain", "windows"))
    told = "; ".join(str(evidence) for answer in answers for evidence in answer["evidence"])
    note = "; ".join(filter(None, [f"simulated; {days:g} job-days of 1,024 ranks, {windows} looks, all irregularities of healthy jobs", told]))
    return [
        figure.from_samples("records judged per second, one core", "/s", rate["records_per_s"], goal=2e6, at_least=True),
        figure.from_samples(f"a look at {RANKS} ranks", "s", scale["look_s"], note=f"{scale['records']} records, as agents send them"),
        figure.from_samples(f"coordinator's core for {RANKS} ranks at ticks of one second, a look every {LOOK_EVERY_S} s", "%", cycles(ticks), goal=50,
                            note=", ".join(f"{part} {100 * statistics.mean(ticks[part + '_s']):.1f} %" for part in ("read", "take_in", "judge"))),
        figure.single(f"memory for {RANKS} ranks, and for making them up", "MB", max(scale["peak_mb"], ticks["peak_mb"]), goal=2000),
        figure.from_samples(f"verdict on a hang of {RANKS} ranks", "s", scale["hang_s"], goal=1, note=f"rank {scale['hang_named']} named"),
        figure.from_samples("a rank of 1,024 becomes 1.2 times as slow: until it is named", "s", [one["after_s"] for one in onsets], goal=30, judged="max",
                            note=f"simulated, a look every {LOOK_EVERY_S} s"),
        figure.single("... another one is named", "runs", sum(one["named"] != one["slow"] for one in onsets), goal=0),
        figure.single("healthy job-days: isolations that a verdict would allow", "", certain, goal=0, note=note),
        figure.single("healthy job-days: alerts per day", "", found / days, goal=0.01),
    ]


def cycles(ticks):
    """Share of a core, in %, of each span from look to look."""
    seconds = [sum(parts) for parts in zip(ticks["read_s"], ticks["take_in_s"], ticks["judge_s"])]
    return [100 * statistics.mean(seconds[at:at + LOOK_EVERY_S]) for at in range(0, len(seconds), LOOK_EVERY_S)]


def healthy_days(tools, days, seed):
    answer = run(tools, "days", days, seed, limit_s=None)
    print(f"bench: {days:g} job-days, seed {seed}: {answer['found']} findings, {answer['certain']} certain", file=sys.stderr)
    return answer


def run(tools, *words, limit_s=600):
    answer = subprocess.run([tools.telemetry, *map(str, words)], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=limit_s)
    return json.loads(answer.stdout)
