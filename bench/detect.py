"""Who slows a job down, seen in its collectives: what watching costs the job, and how often real faults are named rightly."""
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import figure
import session

E2E = pathlib.Path(session.ROOT) / "tests/e2e"
sys.path.append(str(E2E))
# Three groups of the same ranks take turns in one process, operation by operation, in an order drawn anew each time; the collector knows
# only the one that was made with LOCKSTEP_TRAILS set. Which is made first is drawn too: each has threads and sockets of its own.
TURNS = """
import json, os, random, sys, time, torch, torch.distributed as dist
elements, turns, seed, trails = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
os.sched_setaffinity(0, {int(os.environ["RANK"]) % os.cpu_count()})
torch.set_num_threads(1)
dist.init_process_group("gloo")
values = torch.zeros(elements)
chance = random.Random(seed)  # the same for all ranks
groups, took = {}, {}
for name in chance.sample(["plain", "control", "watched"], 3):
    if name == "watched": os.environ["LOCKSTEP_TRAILS"] = trails
    groups[name], took[name] = dist.new_group([0, 1]), []
    os.environ.pop("LOCKSTEP_TRAILS", None)
for turn in range(turns + 10):
    for name in chance.sample(list(groups), 3):
        begin = time.perf_counter()
        dist.all_reduce(values, group=groups[name])
        if turn >= 10: took[name].append(time.perf_counter() - begin)
if dist.get_rank() == 0: print(json.dumps(took))
"""
# Where ranks have to share cores with each other's threads, a part of all operations waits for the scheduler's next tick, 4 ms: noise that is
# twenty times what an all-reduce of 64 bytes takes. Those are counted, and the others are compared.
TICKED_S = 1e-3
KINDS = ("slow rank", "stopped rank", "slow sender", "slow receiver", "delayed link", "delayed link, one ring")


def library(tools, name):
    return str(pathlib.Path(tools.binary).parents[1] / "lib" / name)


def start(tools, ranks, command, trails=None, preload=(), env=None):
    port = session.free_port()
    processes = []
    for rank in range(ranks):
        own = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
               "OMP_NUM_THREADS": "1", "LD_PRELOAD": ":".join(preload), **(env or {})}
        if trails:
            own["LOCKSTEP_TRAILS"] = str(trails)
        processes.append(subprocess.Popen([tools.python, *command], env=own, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
    return processes


def end(processes):
    for process in processes:
        process.kill()
        process.communicate()


def slowdown(tools, quick):
    own = own_times(tools)
    small = turns(tools, elements=16, length=500 if quick else 8000, runs=1 if quick else 16)
    large = turns(tools, elements=1 << 20, length=50 if quick else 900, runs=1 if quick else 16)
    figures = compared("64 bytes", small, own, block=100, goal=0.5, below_s=TICKED_S) + compared("4 MB", large, own, block=10, goal=2)
    waited = {name: 100 * statistics.mean(one >= TICKED_S for run in small for one in run[name]) for name in small[0]}
    figures.append(figure.single("all-reduce of 64 bytes: share that waited for the scheduler, watched", "%", waited["watched"],
                                 note=f"unwatched {waited['plain']:.2f} and {waited['control']:.2f} %"))
    return figures


def turns(tools, elements, length, runs):
    """[{group's name: seconds of each operation}] of each run."""
    took = []
    for seed in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            processes = start(tools, 2, ["-c", TURNS, str(elements), str(length), str(seed), folder], preload=[library(tools, "liblockstep-gloo.so")])
            took.append(json.loads(processes[0].communicate(timeout=600)[0]))
            processes[1].communicate(timeout=60)
    return took


def compared(name, runs, own, block, goal, below_s=float("inf")):
    """Slower by how much: by the geometric mean of each block of turns, of what took less than `below_s`."""
    def means(group):
        blocks = [run[group][at:at + block] for run in runs for at in range(0, len(run[group]), block)]
        return [statistics.geometric_mean(one for one in times if one < below_s) for times in blocks]

    plain = means("plain")
    watched, control = ([100 * (one / other - 1) for one, other in zip(means(group), plain)] for group in ("watched", "control"))
    equals = figure.from_ratios(f"control: two unwatched groups, {name}", "%", control, None)
    return [own_share(name, own, 1e6 * statistics.median(plain)),
            figure.from_ratios(f"all-reduce of {name}, 2 ranks: slower by", "%", watched, goal, control=equals), equals,
            figure.from_samples(f"baseline: all-reduce of {name} unwatched", "us", [1e6 * one for one in plain])]


def own_times(tools):
    """Nanoseconds that the interposer itself takes in an all-reduce of two ranks."""
    fake, ours = library(tools, "libfake-gloo.so"), library(tools, "liblockstep-gloo.so")
    with tempfile.TemporaryDirectory() as folder:
        nothing, watched = (json.loads(subprocess.run(["taskset", "-c", "0", tools.gloo_path, *libraries], check=True, timeout=60, stdout=subprocess.PIPE,
                                                      env={**os.environ, "LOCKSTEP_TRAILS": folder}).stdout) for libraries in ([fake], [ours, fake]))
    return [one - statistics.median(nothing) for one in watched]


def own_share(name, own, took_us):
    """What noise hides in the comparison of whole jobs."""
    return figure.from_samples(f"all-reduce of {name}: what the interposer itself does in it", "%", [one / took_us / 10 for one in own], goal=0.5, judged="p99",
                               note=f"{statistics.median(own):.0f} ns, median of blocks of 100, beside a stand-in for gloo that does nothing; of {took_us:.0f} us unwatched")


def diagnose(tools, trails):
    answer = subprocess.run([tools.binary, "diagnose", str(trails), "--json"], capture_output=True, text=True, timeout=60, check=False)
    return json.loads(answer.stdout)["verdicts"] if answer.returncode == 0 else []


def named(verdicts):
    """For certain, or among what is as good; both as strings."""
    def text(suspect):
        return " ".join(f"{kind} {name}" for kind, name in suspect.items())
    certain = [text(one) for verdict in verdicts if verdict["certain"] for one in verdict["suspects"]]
    sets = [[text(one) for one in verdict["suspects"] + verdict["ambiguous_with"]] for verdict in verdicts]
    return certain, sets


def one_run(tools, kind, ranks, chance):
    """(truth, the first named, its set, wrongly certain, seconds until a hang was named)"""
    from slow_links import DETOUR, Shape, SlowLinks
    culprit = chance.randrange(ranks)
    words = ["--steps", "40", "--pause", "0.05"] + (["--pairs"] if kind != "delayed link, one ring" and kind != "stopped rank" else [])
    shapes, truth = {}, f"rank {culprit}"
    other = (culprit - 1) % ranks
    if kind == "slow rank":
        words += ["--slow", str(culprit), "--factor", "1.5"]
    elif kind == "stopped rank":
        words += ["--stop", f"{culprit}:12"]
    elif kind == "slow sender":
        shapes = {(culprit, rank): Shape(delay_s=0.02) for rank in range(ranks)}
    elif kind == "slow receiver":
        shapes = {(rank, culprit): Shape(delay_s=0.02) for rank in range(ranks)}
    else:
        shapes, truth = {(culprit, other): Shape(delay_s=0.02)}, f"link {min(culprit, other)}<->{max(culprit, other)}"
    with tempfile.TemporaryDirectory() as trails, SlowLinks(shapes) as links:
        processes = start(tools, ranks, [str(E2E / "jobs/rings.py"), *words], trails,
                          [library(tools, "liblockstep-gloo.so"), *([DETOUR] if shapes else [])], links.environment())
        took = None
        if kind == "stopped rank":
            begin = session.wait_for(lambda: stopped_at(processes[culprit].pid), "stopped rank")
            verdicts = session.wait_for(lambda: diagnose(tools, trails) or None, "verdict")
            took = time.monotonic() - begin
        else:
            for process in processes:
                process.communicate(timeout=120)
            verdicts = diagnose(tools, trails)
        end(processes)
    certain, sets = named(verdicts)
    return truth, sets[0][0] if sets else "", sets[0] if sets else [], [one for one in certain if one != truth], took


def stopped_at(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return time.monotonic() if file.read().rsplit(")", 1)[1].split()[0] == "T" else None


def verdicts(tools, quick):
    os.environ["LOCKSTEP_BINARY"] = tools.binary
    chance = random.Random(7)
    runs = [(kind, ranks) for kind in KINDS for ranks in ((4,) if quick else (4, 4, 4, 4, 4, 8, 8, 8, 8))]
    first, inside, wrong, largest, hangs, missed = {}, 0, 0, 0, [], []
    for kind, ranks in runs:
        truth, top, among, wrongly, took = one_run(tools, kind, ranks, chance)
        first.setdefault(kind, []).append(top == truth)
        inside += truth in among
        largest = max(largest, len(among))
        wrong += bool(wrongly)
        if took:
            hangs.append(took)
        if truth not in among or wrongly:
            missed.append(f"{kind} of {ranks} ranks: {truth}, named {among}")
    figures = [figure.single(f"{kind}: named first, of {len(hits)} runs", "%", 100 * sum(hits) / len(hits), goal=99, at_least=True)
               for kind, hits in first.items() if kind != "delayed link, one ring"]
    figures.append(figure.single(f"truth among what is named, of {len(runs)} runs", "%", 100 * inside / len(runs), goal=100, at_least=True,
                                 note="; ".join(missed)))
    figures.append(figure.single("largest set", "", largest, goal=3))
    figures.append(figure.single("wrongly named for certain", "runs", wrong, goal=0))
    figures.append(figure.from_samples("stop of a rank to the verdict", "s", hangs, goal=10))
    return figures


def becomes_slow(tools, ranks, slow):
    """(seconds until somebody is named, whether it is the one) of a live job, one rank of which takes 1.2 times its 50 ms from a moment on."""
    with tempfile.TemporaryDirectory() as folder:
        since = pathlib.Path(folder) / "since"
        words = ["--steps", "100000", "--pause", "0.05", "--slow", str(slow), "--factor", "1.2", "--slow-from", "200", "--slow-since", str(since)]
        with session.Session(tools, [str(E2E / "jobs/rings.py"), *words], ranks) as run:
            began = session.wait_for(lambda: since.read_text() or None if since.exists() else None, "slow rank")
            event = run.wait_event("suspected")
    names = [suspect["name"] for suspect in event.payload["finding"]["suspects"]]
    return (event.at - int(began)) / 1e9, event.payload["finding"]["syndrome"] == "non_communication_slow" and names == [str(slow)]


def onsets(tools, quick):
    chance = random.Random(11)
    runs = [becomes_slow(tools, ranks, chance.randrange(ranks)) for ranks in ((4,) if quick else (4, 8) * 6)]
    return [figure.from_samples("a rank becomes 1.2 times as slow: until it is named", "s", [took for took, _ in runs], goal=30, judged="max",
                                note="`lockstep run`, 4 and 8 ranks by turns, 50 ms of work and an all-reduce of 1 MB; to the event in the journal"),
            figure.single("... another one is named", "runs", sum(not right for _, right in runs), goal=0)]


def hot_path(tools):
    with tempfile.TemporaryDirectory() as folder:
        answer = subprocess.run(["taskset", "-c", "0", tools.collect_path, library(tools, "liblockstep-nccl-profiler.so")], check=True, timeout=120,
                                stdout=subprocess.PIPE, env={**os.environ, "LOCKSTEP_TRAILS": folder})
    calls = {name: times for name, times in json.loads(answer.stdout).items() if name != "nothing"}
    every = [one for times in calls.values() for one in times]
    return [figure.from_samples("callback, all kinds", "ns", every, goal=25)] + [
        figure.from_samples(f"callback: {name}", "ns", times) for name, times in calls.items()]


def measure(tools, quick):
    return hot_path(tools) + slowdown(tools, quick) + verdicts(tools, quick) + onsets(tools, quick)
