"""The same job and the same faults under Lockstep and under others, judged from outside: by the steps that rank 0 logs.

Contenders: lockstep; torchrun as shipped (5 s poll) and with a 0.1 s poll, each with and without a collective timeout; and NVIDIA's
resiliency extension where the Python has it, else policy_heartbeat.py, a re-implementation of its published policy. All but
Lockstep save to files, at the interval that Young and Daly give for this schedule and the measured cost of a save. Faults strike
when a step is first done, at the same steps for everybody.
A fault that a contender has not survived after a bound is ended by the race (the stopped rank is killed), and counted as missed;
one that does not go on within the bound after that either has lost, and its run ends there.

Writes race.json and race.svg to build/race/.
"""
import dataclasses
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Optional

import figure
import picture
import session

RANKS = 4
JOB = session.job("race.py")
COLLECTIVE_TIMEOUT_S = 10
BALLAST_MB = 400
OUT = os.path.join(session.ROOT, "build", "race")


@dataclasses.dataclass
class Fault:
    step: int  # strikes when this step was first done
    kind: str  # "crash" (SIGKILL) or "stop" (SIGSTOP)
    rank: int


@dataclasses.dataclass
class Outcome:
    fault: Fault
    at_s: float             # after the first step
    back_s: Optional[float]  # until the first step beyond those done before; None: missed
    lost_steps: int         # done before the fault, and done again


@dataclasses.dataclass
class Contender:
    name: str
    launcher: list          # words before the job's own
    saves: bool = True      # to files; else lockstep.Checkpoint
    job: tuple = ()
    environment: dict = dataclasses.field(default_factory=dict)


def contenders(tools):
    def torchrun(poll):
        return [tools.python, os.path.join(session.HERE, "torchrun.py"), "--nproc_per_node", str(RANKS), "--monitor_interval", poll,
                "--max_restarts", "100", "--master_port", "PORT"]

    timeout = ("--collective-timeout-s", str(COLLECTIVE_TIMEOUT_S))
    return [
        Contender("lockstep", [tools.binary, "run", "--nproc-per-node", str(RANKS), "--python", tools.python, "--run", "FOLDER/run", "--no-view",
                               "--grace-s", "1"],
                  saves=False),
        Contender("torchrun, 0.1 s poll", torchrun("0.1")),
        Contender(f"torchrun, 0.1 s poll, {COLLECTIVE_TIMEOUT_S} s collective timeout", torchrun("0.1"), job=timeout),
        Contender("torchrun, 5 s poll", torchrun("5")),
        Contender(f"torchrun, 5 s poll, {COLLECTIVE_TIMEOUT_S} s collective timeout", torchrun("5"), job=timeout),
        heartbeats(tools.python),
    ]


def heartbeats(python):
    """The extension itself, or its policy."""
    probe = "import importlib.metadata; print(importlib.metadata.version('nvidia-resiliency-ext'))"
    version = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False).stdout.strip()
    if not version:
        return Contender("heartbeat policy", [python, os.path.join(session.HERE, "policy_heartbeat.py"), str(RANKS)])
    return Contender(f"NVIDIA resiliency extension {version}",
                     [python, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher", "--nproc-per-node", str(RANKS), "--max-restarts", "100",
                      "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:PORT"])


def schedule(steps, seed):
    """Three crashes and a stop, spread over the run; the same for everybody."""
    chance = random.Random(seed)
    places = [0.15, 0.38, 0.6, 0.8]
    kinds = ["crash", "crash", "stop", "crash"]
    return [Fault(int(steps * (place + chance.uniform(-0.03, 0.03))), kind, chance.randrange(RANKS)) for place, kind in zip(places, kinds)]


class Race:
    """One contender's run."""

    def __init__(self, tools, contender, steps, every, ballast_mb=0):
        self.folder = tempfile.mkdtemp(prefix="lockstep-race-")
        self.lines = session.Lines(os.path.join(self.folder, "log"))
        words = [word.replace("FOLDER", self.folder).replace("PORT", str(session.free_port())) for word in contender.launcher]
        words += [JOB, "--steps", str(steps), "--diary", self.lines.path, "--ballast-mb", str(ballast_mb), *contender.job]
        if contender.saves:
            os.mkdir(os.path.join(self.folder, "files"))
            words += ["--files", os.path.join(self.folder, "files"), "--every", str(every)]
        environment = {**os.environ, "PYTHONPATH": os.path.join(session.ROOT, "python"), "OMP_NUM_THREADS": "1"}
        self.output = open(os.path.join(self.folder, "output.txt"), "w")
        self.process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output,
                                        start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for pid in {line["pid"] for _, line in self.lines.all if "pid" in line}:
            if is_ours(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.lines.close()
        self.output.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def steps(self):
        """[(CLOCK_BOOTTIME ns, step)] as rank 0 did them, the repeated ones too."""
        return [(at, line["step"]) for at, line in list(self.lines.all) if "step" in line]

    def wait_step(self, accept, patience_s):
        """When the first such step was done, or None: not in time. Raises when the job has ended without it."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            found = next((at for at, step in self.steps() if accept(at, step)), None)
            if found is not None:
                return found
            if self.process.poll() is not None:
                with open(self.output.name) as said:
                    raise RuntimeError(f"the job ended with status {self.process.returncode}:\n{said.read()[-2000:]}")
            time.sleep(0.005)
        return None

    def victim(self, rank):
        """The newest process of this rank."""
        return [line["pid"] for _, line in list(self.lines.all) if line.get("rank") == rank][-1]


def is_ours(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read()
            return b"race.py" in words or b"zygote" in words
    except OSError:
        return False


class Lost(RuntimeError):
    """A contender that does not go on any more."""


def strike(race, fault, bound_s):
    race.wait_step(lambda at, step: step >= fault.step, 600)
    first = race.steps()[0][0]
    pid = race.victim(fault.rank)
    at = session.strike(pid, signal.SIGKILL if fault.kind == "crash" else signal.SIGSTOP)
    time.sleep(0.05)  # what was on its way to the log
    done = max(step for when, step in race.steps() if when <= at + 50_000_000)
    back = race.wait_step(lambda when, step: when > at and step > done, bound_s)
    if back is None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if race.wait_step(lambda when, step: when > at and step > done, bound_s) is None:
            raise Lost(f"it did not go on within {2 * bound_s} s of a {fault.kind} in step {fault.step}")
    again = sorted(step for when, step in race.steps() if when > at)
    return Outcome(fault, (at - first) / 1e9, None if back is None else (back - at) / 1e9, max(0, done + 1 - again[0]))


def run_one(tools, contender, faults, steps, every, bound_s, ballast_mb=0):
    print(f"race: {contender.name}", file=sys.stderr, flush=True)
    with Race(tools, contender, steps, every, ballast_mb) as race:
        outcomes, lost = [], ""
        try:
            for fault in faults:
                outcomes.append(strike(race, fault, bound_s))
            race.wait_step(lambda _, step: step == steps - 1, 600)
        except Lost as why:
            lost = str(why)
        done, ended = race.steps(), session.boottime_ns()
    first = done[0][0]
    curve = [((at - first) / 1e9, step) for at, step in done]
    clean = statistics.median([b[0] - a[0] for a, b in zip(curve, curve[1:]) if b[1] == a[1] + 1])
    total = (ended - first) / 1e9 if lost else curve[-1][0]
    return {"name": contender.name, "outcomes": outcomes, "curve": curve, "step_s": clean, "total_s": total, "lost": lost,
            "goodput": 100 * clean * max(step for _, step in curve) / total}


def best_interval(tools, contender, steps, faults):
    """Steps between two saves by Young and Daly: the square root of twice the cost of a save times the time between faults."""
    with Race(tools, contender, 12, 1) as race:
        race.wait_step(lambda _, step: step == 11, 120)
        saved = statistics.median([line["saved_s"] for _, line in race.lines.all if "saved_s" in line])
        times = [at for at, _ in race.steps()]
    step_s = statistics.median([(b - a) / 1e9 for a, b in zip(times, times[1:])]) - saved
    between = steps * step_s / len(faults)
    return max(1, round(math.sqrt(2 * saved * between) / step_s)), saved, step_s


def measure(tools, quick):
    steps = 60 if quick else 400
    bound_s = 30 if quick else 120
    faults = schedule(steps, seed=1)
    runners = contenders(tools)
    every, saved, step_s = best_interval(tools, runners[1], steps, faults)
    results = [run_one(tools, contender, faults, steps, every, bound_s) for contender in runners]
    write(results, faults, {"steps": steps, "every": every, "saved_s": saved, "step_s": step_s, "bound_s": bound_s})
    what = f"{steps} steps of {step_s:.3f} s, {RANKS} ranks; files every {every} steps (a save takes {1000 * saved:.0f} ms); picture: build/race/race.svg"
    return [one for result in results for one in figures_of(result, bound_s, what)] + [with_ballast(tools)]


def with_ballast(tools):
    """Lockstep alone, with so much state that each rank saves that many MB at every step."""
    faults = [Fault(8 * number, "crash", number % RANKS) for number in range(1, 5)]
    result = run_one(tools, contenders(tools)[0], faults, 40, 1, 120, BALLAST_MB)
    return figure.from_samples(f"lockstep, {BALLAST_MB} MB per rank: crash to a new step", "s", [outcome.back_s for outcome in result["outcomes"]],
                               note=f"{RANKS} ranks; a step takes {result['step_s']:.2f} s")


def figures_of(result, bound_s, what):
    crashes = [outcome.back_s for outcome in result["outcomes"] if outcome.fault.kind == "crash"]
    stops = [outcome.back_s for outcome in result["outcomes"] if outcome.fault.kind == "stop"]
    lost = sum(outcome.lost_steps for outcome in result["outcomes"])
    name = result["name"]
    missed = result["lost"] or (f"not within {bound_s} s" if None in crashes else "")
    back = [seconds for seconds in crashes if seconds is not None]
    crash, goal = f"{name}: crash to a new step", 0.5 if name == "lockstep" else None
    figures = [figure.from_samples(crash, "s", back, goal=goal, judged="max", note=missed) if back else figure.single(crash, "s", None, note=missed)]
    if not stops:
        figures.append(figure.single(f"{name}: stop to a new step", "s", None, note="it had lost before"))
    elif None not in stops:
        figures.append(figure.from_samples(f"{name}: stop to a new step", "s", stops))
    else:
        figures.append(figure.single(f"{name}: stop to a new step", "s", None, note=f"not within {bound_s} s: the race killed the stopped rank"))
    figures.append(figure.single(f"{name}: useful share of the time", "%", result["goodput"], note=f"{what}; {lost} steps done again"))
    return figures


def write(results, faults, about):
    os.makedirs(OUT, exist_ok=True)
    document = {**about, "faults": [dataclasses.asdict(fault) for fault in faults],
                "contenders": [{**result, "outcomes": [dataclasses.asdict(outcome) for outcome in result["outcomes"]]} for result in results]}
    with open(os.path.join(OUT, "race.json"), "w") as file:
        json.dump(document, file, indent=1)
    lines = [picture.Line(result["name"], result["curve"], [outcome.at_s for outcome in result["outcomes"]]) for result in results]
    with open(os.path.join(OUT, "race.svg"), "w") as file:
        file.write(picture.progress("The same job, the same faults", lines, about["steps"]))
