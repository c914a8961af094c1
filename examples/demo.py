"""The demo: a real training job loses a rank, has another one stopped, loses a machine, and still computes the same, bit for bit.

    ./dev demo                        # builds first
    python3 examples/demo.py --steps 120

It runs train_gpt.py under `lockstep run` with the live view, kills a rank with SIGKILL a third of the way and stops
another with SIGSTOP two thirds of the way, as somebody else would: Lockstep is told nothing. Then it runs the same job
undisturbed, compares both, and says what the faults cost. Last, the same job on two machines with a third that stands by:
one of the two is lost (demo_machine.py). Exit status 0 only if all runs are equal bit for bit and all faults were named
rightly.
"""
import argparse
import collections
import json
import os
import signal
import subprocess
import sys
import tempfile

import demo_machine
from demo_job import Job, say

HERE = os.path.dirname(os.path.abspath(__file__))
DEFAULT_BINARY = os.path.join(HERE, "..", "build", "release", "bin", "lockstep")

Fault = collections.namedtuple("Fault", "rank signal symptom share")
FAULTS = [
    Fault(rank=2, signal=signal.SIGKILL, symptom="crash", share=1 / 3),
    Fault(rank=1, signal=signal.SIGSTOP, symptom="stopped", share=2 / 3),
]
NAMED = [(fault.symptom, [str(fault.rank)]) for fault in FAULTS]


def strike(job, fault, step, epoch):
    """Sends the signal when all ranks have finished `step`; False if the job ended before."""
    ranks = job.wait_for_step(step, epoch)
    if ranks is None:
        return False
    pid = ranks[fault.rank]["pid"]
    verb = "killing" if fault.signal == signal.SIGKILL else "stopping"
    job.say_above_view(f"{verb} rank {fault.rank} (kill -{fault.signal.name[3:]} {pid})", ranks)
    os.kill(pid, fault.signal)
    return True


def run_disturbed(flags):
    say(f"training on {flags.ranks} ranks for {flags.steps} steps; rank {FAULTS[0].rank} will be killed, rank {FAULTS[1].rank} stopped")
    with Job(flags, "disturbed", quiet=False) as job:
        for epoch, fault in enumerate(FAULTS, start=1):
            if not strike(job, fault, int(fault.share * flags.steps), epoch):
                break
        job.end_well()
    return job


def run_undisturbed(flags):
    with Job(flags, "undisturbed", quiet=True) as job:
        for share in (0, 0.25, 0.5, 0.75):
            step = int(share * flags.steps)
            if job.wait_for_step(step) is not None:
                say(f"the same job undisturbed, for comparison: step {step} of {flags.steps}")
        job.end_well()
    return job


def read(path):
    with open(path) as file:
        return json.load(file)


def print_incidents(incidents):
    for incident in incidents:
        phases = incident["phases"]
        times = ", ".join(f"{name} {phases[name + '_s']:.3f} s" for name in ("detect", "decide", "restart", "recompute"))
        print(f"  #{incident['id']} {incident['headline']}")
        print(f"     {times}; steps lost: {incident['steps_lost']}")
        for action in incident["actions"]:
            print(f"     {action['text']}")


def print_ettr(ettr):
    lost = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in ettr["lost_s"].items() if seconds >= 0.005)
    print(f"  ETTR {100 * ettr['cumulative']:.1f} % of {ettr['wall_s']:.1f} s; lost to {lost or 'nothing'}")


def print_explanation(job):
    """Where the time of a step goes, from what the run noted of itself."""
    answer = subprocess.run([job.binary, "explain", job.run_dir, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if answer.returncode != 0:  # as where the collectors can't be preloaded
        print("  not known: the collectors were not there")
        return
    explained = json.loads(answer.stdout)
    path = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in explained["critical_path"]["by_optype"].items() if seconds >= 0.0005)
    print(f"  {1000 * explained['step_s']['measured']:.1f} ms on its critical path: {path}")
    print(f"  {explained['slowdown']:.2f} times as long as if all ranks and steps were alike" + (", because of" if explained["causes"] else ""))
    for cause in explained["causes"][:3]:
        ranks = ", ".join(str(suspect["rank"]) for suspect in cause["suspects"] if "rank" in suspect) or "all"
        print(f"     {cause['cause']} (rank {ranks}): {1000 * cause['gain_s']:.1f} ms of a step; {cause['evidence'][0]}")


def compare(job, undisturbed):
    """Prints a line per kind of state; True if every bit is equal."""
    disturbed, undisturbed = read(job.result), read(undisturbed.result)
    kinds = {"parameters": "parameters", "optimizer": "optimizer state", "losses": "loss curve", "rng": "random generators"}
    for key, name in kinds.items():
        ours, theirs = disturbed[key], undisturbed[key]
        detail = f"SHA-256 {ours[:16]}..." if isinstance(ours, str) else f"{len(ours)} values"
        print(f"  {name:18} {'equal' if ours == theirs else 'DIFFERENT'}  {detail}")
    return all(disturbed[key] == undisturbed[key] for key in kinds)


def report(job, undisturbed, name, named):
    """Prints what happened; True if it is as it should be."""
    print(f"\nIncidents of the {name} run")
    print_incidents(job.ask("incidents"))
    print_ettr(job.ask("status")["ettr"])
    print("\nA step of it (lockstep explain)")
    print_explanation(job)
    print(f"\nThe {name} run compared with the undisturbed one")
    equal, found = compare(job, undisturbed), job.named_for_certain()
    if found != named:
        print(f"\nNOT NAMED RIGHTLY: expected {named}, found {found}")
    print("\nEqual bit for bit." if equal else "\nNOT EQUAL: the restarts changed the result.")
    print(f"More: lockstep incidents --run {job.run_dir}\n", flush=True)
    return equal and found == named


def python_with_torch():
    """This interpreter if it has torch, else Debian's, which ./dev setup has given one."""
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    for python in (sys.executable, "/usr/bin/python3"):
        if os.access(python, os.X_OK) and subprocess.run([python, "-c", probe], check=False).returncode == 0:
            return python
    sys.exit("demo: no Python with torch: run ./dev setup, or name one with --python")


def parse_flags():
    parser = argparse.ArgumentParser(description="Disturb a training job, and see that it computes the same.")
    parser.add_argument("--steps", type=int, default=300, help="of each of the three runs (default 300)")
    parser.add_argument("--ranks", type=int, default=4, help="default 4")
    parser.add_argument("--python", help="interpreter with torch; default: this one, or Debian's")
    parser.add_argument("--binary", default=os.path.normpath(DEFAULT_BINARY), help="default: of the release build")
    flags = parser.parse_args()
    if flags.steps < 30 or flags.ranks < 4 or flags.ranks % 2 != 0:
        parser.error("the faults need at least 30 steps, and two machines of at least 2 ranks each: an even --ranks")
    if not os.access(flags.binary, os.X_OK):
        parser.error(f"{flags.binary} is missing: run ./dev build")
    flags.python = flags.python or python_with_torch()
    flags.folder = tempfile.mkdtemp(prefix="lockstep-demo-")
    return flags


def main():
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    flags = parse_flags()
    try:
        disturbed, undisturbed = run_disturbed(flags), run_undisturbed(flags)
        well = report(disturbed, undisturbed, "disturbed", NAMED)
        well &= report(demo_machine.run(flags), undisturbed, "last", demo_machine.NAMED)
        return 0 if well else 1
    except KeyboardInterrupt:
        say("interrupted; everything it started has ended")
        return 130


if __name__ == "__main__":
    sys.exit(main())
