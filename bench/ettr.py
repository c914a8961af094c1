"""Effective training time with twenty mixed faults in ten minutes, under Lockstep and under others, judged as in race.py: by the steps that rank 0 logs.

What strikes is drawn from the incidents of Table 1 of ByteRobust (SOSP 2025) that a machine without GPUs can have, with the table's weights (KINDS);
when and whom is drawn too, the same for everybody. The useful share is the distinct steps that were done, times the median step without disturbance,
over the ten minutes. A contender that has not gone on after a bound is helped (a stopped rank is killed); what was to strike meanwhile strikes when it is back.
"""
import dataclasses
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time

import figure
import picture
import race
import session

MINUTES, FAULTS, SEED = 10, 20, 8
BOUND_S = 60
OVERLOAD_S = 5
# (incidents of Table 1, how it is done here)
KINDS = {
    "abort": (19968, "CUDA error: the rank aborts"),
    "overload": (6095, f"CPU overload: two processes take what they get for {OVERLOAD_S} s"),
    "kill": (5567, "CPU out of memory: the rank is killed"),
    "hang": (5506, "job hang: the rank is stopped"),
    "error": (2755 + 1599 + 1176 + 1104, "disk space, InfiniBand, mount and HDFS errors: the rank raises OSError"),
    "container": (781, "container error: all ranks are killed"),
}
SIGNALS = {"abort": signal.SIGABRT, "kill": signal.SIGKILL, "hang": signal.SIGSTOP, "error": signal.SIGUSR2}
# The paper's own setting: 175 incidents of a dense job in three months on 9,600 GPUs, and the 54 s that a restart in place takes at 8,192 GPUs (Tables 4 and 7).
PAPER = {"incidents": 128 + 20 + 15 + 12, "days": 91, "restart_s": 54, "ettr_percent": 97}


@dataclasses.dataclass
class Fault:
    at_s: float  # after the first step
    kind: str
    rank: int


def schedule(seconds, count):
    chance = random.Random(SEED)
    kinds = chance.choices(list(KINDS), [weight for weight, _ in KINDS.values()], k=count)
    times = sorted(chance.uniform(0.02, 0.96) * seconds for _ in range(count))
    return [Fault(at, kind, chance.randrange(race.RANKS)) for at, kind in zip(times, kinds)]


def contenders(tools):
    own, torchrun = race.contenders(tools)[0], race.contenders(tools)[2]
    return [dataclasses.replace(own, launcher=[*own.launcher, "--max-restarts", "1000"]),
            dataclasses.replace(torchrun, launcher=[word if word != "100" else "1000" for word in torchrun.launcher]), race.heartbeats(tools.python)]


def overload():
    burn = f"import time; end = time.monotonic() + {OVERLOAD_S}\nwhile time.monotonic() < end: pass"
    busy = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(2)]
    for process in busy:
        process.wait()


def strike(run, fault):
    """The time just before, or None if there was nobody to strike."""
    ranks = range(race.RANKS) if fault.kind == "container" else [fault.rank]
    at = session.boottime_ns()
    for rank in ranks:
        try:
            os.kill(run.victim(rank), SIGNALS.get(fault.kind, signal.SIGKILL))
        except ProcessLookupError:
            return None
    return at


def endure(run, fault):
    """Seconds until the job has done a step beyond those before the fault; None: not within the bound."""
    if fault.kind == "overload":
        overload()
        return 0.0
    at = strike(run, fault)
    if at is None:
        return 0.0
    time.sleep(0.05)
    done = max(step for when, step in run.steps() if when <= at + 50_000_000)
    beyond = lambda when, step: when > at and step > done  # noqa: E731
    back = run.wait_step(beyond, BOUND_S)
    if back is None:
        try:
            os.kill(run.victim(fault.rank), signal.SIGKILL)
        except ProcessLookupError:
            pass
        if run.wait_step(beyond, BOUND_S) is None:
            raise race.Lost(f"it did not go on within {2 * BOUND_S} s of: {KINDS[fault.kind][1]}")
        return None
    return (back - at) / 1e9


def run_one(tools, contender, faults, seconds, every):
    print(f"ettr: {contender.name}", file=sys.stderr, flush=True)
    outcomes, lost = [], ""
    with race.Race(tools, contender, 100_000_000, every) as run:
        run.wait_step(lambda *_: True, 60)
        first = run.steps()[0][0]
        now = lambda: (session.boottime_ns() - first) / 1e9  # noqa: E731
        try:
            for fault in faults:
                time.sleep(max(0.0, fault.at_s - now()))
                struck = now()
                if struck >= seconds:
                    break
                outcomes.append((struck, fault, endure(run, fault)))
            time.sleep(max(0.0, seconds - now()))
        except (race.Lost, RuntimeError) as why:
            lost = str(why).splitlines()[0]
        done = [(at, step) for at, step in run.steps() if at <= first + seconds * 1e9]
    curve = [((at - first) / 1e9, step) for at, step in done]
    clean = statistics.median([b[0] - a[0] for a, b in zip(curve, curve[1:]) if b[1] == a[1] + 1])
    return {"name": contender.name, "outcomes": outcomes, "curve": curve, "step_s": clean, "lost": lost,
            "useful": 100 * clean * len({step for _, step in curve}) / seconds}


def figures_of(result, faults, seconds, every):
    name, outcomes = result["name"], result["outcomes"]
    kinds = ", ".join(f"{sum(fault.kind == kind for fault in faults)} {kind}" for kind in KINDS)
    note = f"{len(outcomes)} of {len(faults)} faults struck in {seconds:g} s ({kinds}); a step takes {result['step_s']:.3f} s"
    if name != "lockstep":
        note += f"; files every {every} steps"
    figures = [figure.single(f"{name}: effective training time", "%", result["useful"], goal=95 if name == "lockstep" else None, at_least=True,
                             note="; ".join(filter(None, [note, result["lost"]])))]
    for kind in KINDS:
        back = [seconds_back for _, fault, seconds_back in outcomes if fault.kind == kind and seconds_back]
        if back and kind != "overload":
            figures.append(figure.from_samples(f"{name}: {kind} to a new step", "s", back))
    return figures


def scaled(result):
    """To the paper's setting, with what is assumed: see the note."""
    back = [seconds for _, fault, seconds in result["outcomes"] if seconds and fault.kind != "overload"]
    each = statistics.mean(back) + PAPER["restart_s"]
    share = 100 * (1 - PAPER["incidents"] * each / (PAPER["days"] * 86400))
    return figure.single("simulated: effective training time of 9,600 GPUs in three months", "%", share,
                         note=f"assumed: {PAPER['incidents']} incidents (Table 4, dense), each of which costs what it costs here in the mean "
                              f"({statistics.mean(back):.2f} s) and the {PAPER['restart_s']} s of a restart in place at 8,192 GPUs (Table 7); the paper's own figure is "
                              f"up to {PAPER['ettr_percent']} %, with incidents that people had to look into, of which this has none")


def measure(tools, quick):
    seconds, count = (60, 3) if quick else (60 * MINUTES, FAULTS)
    faults = schedule(seconds, count)
    runners = contenders(tools)
    with_saves = dataclasses.replace(runners[1])
    every, saved, step_s = race.best_interval(tools, with_saves, int(seconds / 0.3), faults)
    results = [run_one(tools, contender, faults, seconds, every) for contender in runners]
    write(results, {"seconds": seconds, "every": every, "saved_s": saved, "step_s": step_s, "faults": [dataclasses.asdict(fault) for fault in faults]})
    return [one for result in results for one in figures_of(result, faults, seconds, every)] + [scaled(results[0])]


def write(results, about):
    os.makedirs(race.OUT, exist_ok=True)
    plain = [{**result, "outcomes": [(at, dataclasses.asdict(fault), back) for at, fault, back in result["outcomes"]]} for result in results]
    with open(os.path.join(race.OUT, "ettr.json"), "w") as file:
        json.dump({**about, "contenders": plain}, file, indent=1)
    lines = [picture.Line(result["name"], result["curve"], [at for at, _, _ in result["outcomes"]]) for result in results]
    most = max(step for result in results for _, step in result["curve"])
    with open(os.path.join(race.OUT, "ettr.svg"), "w") as file:
        file.write(picture.progress("The same job, the same twenty faults", lines, most))
