"""The ledger against an outside observer: where the wall time of a job went, by Lockstep's account and by the job's own diary.

Ranks of a job that notes its loops and steps (jobs/observed.py) are killed and stopped at random moments, which the bench notes. From
the diary alone follows what each phase of docs/models/control.md must be; an observer can't part detect, decide and restart, so these
three are compared as one, "down".
"""
import collections
import json
import os
import random
import signal
import subprocess
import tempfile
import time

import figure
import session

RANKS = 4
GOAL = 0.5  # % of the wall time, in each phase
PHASES = ("startup", "productive", "down", "recompute")
STEPS_BETWEEN = 8

Fault = collections.namedtuple("Fault", "at epoch")


def measure(tools, quick):
    chance = random.Random(1)
    signals = [signal.SIGKILL] * (2 if quick else 10) + [signal.SIGSTOP] * (1 if quick else 2)
    chance.shuffle(signals)
    steps = 4 * STEPS_BETWEEN * (len(signals) + 1)
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        path = os.path.join(folder, "diary")
        begun = session.boottime_ns()
        with session.Session(tools, [session.job("observed.py"), path, str(steps)], RANKS, ["--max-restarts", "100"]) as run:
            faults = [strike(run, epoch, number, chance) for epoch, number in enumerate(signals, start=1)]
            run.process.wait(session.PATIENCE_S)
            theirs = account(tools, run)
        ours = observe(Diary(path), faults, begun)
    wall = sum(ours.values())
    note = f"{len(faults)} faults in {wall:.0f} s, {RANKS} ranks; "
    return [figure.single(f"ledger: {phase}", "% of wall time", 100 * abs(ours[phase] - theirs[phase]) / wall, goal=GOAL,
                          note=f"{note}observed {ours[phase]:.3f} s, in the ledger {theirs[phase]:.3f} s") for phase in PHASES]


def strike(run, epoch, number, chance):
    """Some steps into the epoch, at a random moment, a random rank."""
    ranks = run.running(epoch, STEPS_BETWEEN)["ranks"]
    time.sleep(chance.uniform(0, 0.5))
    return Fault(session.strike(chance.choice(ranks)["pid"], number), epoch)


def account(tools, run):
    """Seconds by phase, as `lockstep status` has them."""
    status = json.loads(subprocess.check_output([tools.binary, "status", "--run", run.run_dir, "--json"]))
    if status["verdict"] != "completed":
        raise RuntimeError(f"the job ended with: {status['verdict']}")
    lost = status["ettr"]["lost_s"]
    return {"startup": lost["startup"], "recompute": lost["recompute"], "down": lost["detect"] + lost["decide"] + lost["restart"],
            "productive": status["ettr"]["wall_s"] - sum(lost.values())}


class Diary:
    """What all ranks wrote: when the loop of an epoch had begun on all of them, and when all had finished a step of it."""

    def __init__(self, path):
        self.loops, self.ends, self.restored = {}, {}, {}
        seen = collections.Counter()
        for rank in range(RANKS):
            with open(f"{path}.{rank}") as lines:
                for line in map(json.loads, lines):
                    key = (line["what"], line["epoch"], line["step"])
                    seen[key] += 1
                    times = self.loops if line["what"] == "loop" else self.ends
                    at = line["epoch"] if line["what"] == "loop" else (line["epoch"], line["step"])
                    times[at] = max(times.get(at, 0), line["at_ns"])
                    if line["what"] == "loop":
                        self.restored[line["epoch"]] = line["step"]
        self.ends = {key: at for key, at in self.ends.items() if seen[("step", *key)] == RANKS}

    def newest(self, epoch):
        """(step, when its last rank ended it) of an epoch."""
        return max((step, at) for (one, step), at in self.ends.items() if one == epoch)


def observe(diary, faults, begun):
    """Seconds by phase, from the diary and the moments of the faults."""
    sums = dict.fromkeys(PHASES, 0)
    sums["startup"] = diary.loops[1] - begun
    since = diary.loops[1]
    for fault in faults:
        frontier, end = diary.newest(fault.epoch)
        loop, restored = diary.loops[fault.epoch + 1], diary.restored[fault.epoch + 1]
        caught_up = diary.ends[(fault.epoch + 1, frontier)] if restored < frontier else loop
        sums["productive"] += end - since
        sums["recompute"] += (fault.at - end) + (caught_up - loop)
        sums["down"] += loop - fault.at
        since = caught_up
    sums["productive"] += diary.newest(len(faults) + 1)[1] - since
    return {phase: ns / 1e9 for phase, ns in sums.items()}
