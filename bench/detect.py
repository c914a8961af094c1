"""Who slows a job down, seen in its collectives: what watching costs the job, and how often real faults are named rightly."""
import json
import math
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
# Three groups of the same ranks take turns in one process, operation by operation, in an order drawn anew each time. A process has one trail,
# which notes every group from then on: only the one that is made last can be watched. So that what it has from being the last is known, other
# runs watch nobody.
TURNS = """
import json, os, random, sys, time, torch, torch.distributed as dist
elements, turns, seed, trails = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
torch.set_num_threads(1)
dist.init_process_group("gloo")
values = torch.zeros(elements)
chance = random.Random(seed)  # the same for all ranks
names, groups = ["first", "second", "last"], {}
for name in names:
    if name == "last" and trails: os.environ["LOCKSTEP_TRAILS"] = trails
    groups[name] = dist.new_group([0, 1])
took = {name: [] for name in names}
for turn in range(turns + 10):
    for name in chance.sample(names, 3):
        begin = time.perf_counter()
        dist.all_reduce(values, group=groups[name])
        if turn >= 10: took[name].append(time.perf_counter() - begin)
if dist.get_rank() == 0: print(json.dumps(took))
"""
# Where ranks have to share cores with each other's threads, a part of all operations waits for the scheduler's next tick, 4 ms: noise that is
# twenty times what an all-reduce of 64 bytes takes. The others are compared; and how many had to wait.
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
    own, figures = own_times(tools), []
    for name, elements, length, block, goal, below_s in (("64 bytes", 16, 500 if quick else 8000, 100, 0.5, TICKED_S),
                                                         ("4 MB", 1 << 20, 50 if quick else 900, 10, 2, float("inf"))):
        watched, nobody = ([turns(tools, elements, length, seed, watches) for seed in range(1 if quick else runs)] for watches, runs in ((True, 16), (False, 8)))
        slower, equal = (slower_by(runs, block, below_s) for runs in (watched, nobody))
        equals = figure.from_ratios(f"control: nobody watched, {name}", "%", equal, None)
        unwatched = means(nobody, "first", block, below_s)
        figures += [own_share(name, own, 1e6 * statistics.median(unwatched)),
                    figure.from_ratios(f"all-reduce of {name}, 2 ranks: slower by", "%", slower, goal, control=equals), equals,
                    figure.from_samples(f"baseline: all-reduce of {name} unwatched", "us", [1e6 * one for one in unwatched])]
        if below_s < float("inf"):
            figures += [figure.from_ratios(f"share that waited for the scheduler, {name}{which}: more by", "%", waits_more(runs, length // 4, below_s), None)
                        for which, runs in (("", watched), (", nobody watched", nobody))]
    return figures


def turns(tools, elements, length, seed, watches):
    """{group's name: seconds of each operation}"""
    with tempfile.TemporaryDirectory() as folder:
        processes = start(tools, 2, ["-c", TURNS, str(elements), str(length), str(seed), folder if watches else ""],
                          preload=[library(tools, "liblockstep-gloo.so")])
        took = json.loads(processes[0].communicate(timeout=600)[0])
        processes[1].communicate(timeout=60)
        if bool(os.listdir(folder)) != watches:
            raise RuntimeError(f"trails in {folder}: {os.listdir(folder)}")
    return took


def blocks(runs, group, size):
    return [run[group][at:at + size] for run in runs for at in range(0, len(run[group]), size)]


def means(runs, group, size, below_s):
    """The geometric mean of each block, of what took less than `below_s`; of a block in which nothing did, nan."""
    kept = ([one for one in times if one < below_s] for times in blocks(runs, group, size))
    return [statistics.geometric_mean(times) if times else math.nan for times in kept]


def slower_by(runs, size, below_s):
    """Per cent, of each block: the last group, beside the mean of the others."""
    first, second, last = (means(runs, group, size, below_s) for group in ("first", "second", "last"))
    ratios = [one / math.sqrt(a * b) for a, b, one in zip(first, second, last)]
    return [100 * (ratio - 1) for ratio in ratios if not math.isnan(ratio)]


def waits_more(runs, size, below_s):
    first, second, last = ([sum(one >= below_s for one in times) for times in blocks(runs, group, size)] for group in ("first", "second", "last"))
    return [100 * (2 * one / (a + b) - 1) for a, b, one in zip(first, second, last) if a + b > 0]


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
