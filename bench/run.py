"""./dev bench [NAME...] [--quick] [--json FILE]: measures, prints a table, and says for each figure whether its goal was reached.

run (the default)   all figures of a live run: notice recovery stopped overhead checkpoint memory
recover             those of recovery: race machine_loss two_faults hot_update keep ettr
ledger              its sums against a job's own diary
fan_out             the coordinator alone, of 1,024 nodes
coordinator_scale   what 10,000 nodes cost the coordinator to hear
wrong_names         the detector alone, 100,000 planted faults
injections          1,000 real faults
noisy               an hour of a healthy job that looks ill
stack_groups        the stacks of 10,000 agents, decided
explain             how fast a slow job is explained
explain_large       ... from a file of 5 GB
detect              what watching collectives costs, and whom it names
telemetry           how fast what many ranks tell is judged, and 24 healthy job-days, simulated (2 h)
plan                how well published runs are predicted, by rates fitted without them (4 min)
reshape             how fast tensors of other systems' checkpoints are read
feed                photos into tensors, beside torch's DataLoader (3 min)
feed_batches        what a batch of the data service costs, and how many photos jobs get that share one (2 min)
feed_jobs           four jobs of one data service, beside four torch DataLoaders (4 min)
feed_race           networks that train on photos, from a data service and from torch DataLoaders (4 min)
stage               steps of 256 KB from a simulation to a trainer, and its model asked
race                the same job and faults under Lockstep and under others
machine_loss        until a standby steps in the place of a lost machine
two_faults          two at once, and one while another is repaired
hot_update          from a request to the first step of new code
keep                what a copy of each checkpoint in a peer's memory costs
ettr                twenty mixed faults in ten minutes, under Lockstep and others (30 min)
"""
import argparse
import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys

import figure
import machine
import session

LIVE = ("notice", "recovery", "stopped", "overhead", "checkpoint", "memory")
RECOVER = ("race", "machine_loss", "two_faults", "hot_update", "keep", "ettr")
GROUPS = {"run": LIVE, "recover": RECOVER}
NAMES = (*LIVE, "ledger", "fan_out", "coordinator_scale", "wrong_names", "stack_groups", "injections", "noisy", "explain", "explain_large", "detect", "telemetry",
         "plan", "reshape", "feed", "feed_batches", "feed_jobs", "feed_race", "stage", *RECOVER)


def tools(flags):
    folder = os.path.join(session.ROOT, "build", "release", "bin")
    compiled = (os.path.join(folder, name) for name in session.PROGRAMS)
    found = session.Tools(flags.binary or os.path.join(folder, "lockstep"), flags.python or python_with_torch(), *compiled)
    for program in found:
        if not os.access(program, os.X_OK):
            sys.exit(f"bench: {program} is missing: run ./dev build")
    return found


def python_with_torch():
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    for python in (sys.executable, "/usr/bin/python3"):
        if os.access(python, os.X_OK) and subprocess.run([python, "-c", probe], check=False).returncode == 0:
            return python
    sys.exit("bench: no Python with torch: run ./dev setup, or name one with --python")


def chosen(names):
    wanted = []
    for name in names or ["run"]:
        if name not in GROUPS and name not in NAMES:
            sys.exit(f"bench: no figure {name!r}; there are {', '.join((*GROUPS, *NAMES))}")
        wanted += GROUPS.get(name, [name])
    return list(dict.fromkeys(wanted))


def measure(name, found, quick):
    """The figures of one module; one that fails is reported as not measured, and the others go on."""
    load = os.getloadavg()[0]
    print(f"bench: {name} (load average {load:.2f})", file=sys.stderr, flush=True)
    try:
        figures = importlib.import_module(name).measure(found, quick)
    except (OSError, RuntimeError, LookupError, ValueError, ImportError, AttributeError, subprocess.SubprocessError) as error:
        return [figure.single(f"{name}: FAILED", "", None, goal=0, note=f"{type(error).__name__}: {error}")]
    print(figure.table(figures), file=sys.stderr, flush=True)
    return [dataclasses.replace(one, values={**one.values, "load_before": load}) for one in figures]


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="run (the six of a live run: the default), recover (those of recovery), " + ", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="few samples: shows that it works, proves nothing")
    parser.add_argument("--json", metavar="FILE", help="write everything measured there; - for stdout instead of the table")
    parser.add_argument("--binary", help="default: lockstep of the release build")
    parser.add_argument("--python", help="interpreter with torch; default: this one, or Debian's")
    return parser.parse_args()


def main():
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # unwinds, which ends what was started
    flags = parse_flags()
    names, found = chosen(flags.names), tools(flags)
    where = machine.describe(found.python)
    figures = [one for name in names for one in measure(name, found, flags.quick)]
    document = {"machine": where, "quick": flags.quick, "figures": [one.to_json() for one in figures]}
    if flags.json == "-":
        print(json.dumps(document, indent=1))
    else:
        print(machine.sentence(where), figure.table(figures), sep="\n\n")
    if flags.json not in (None, "-"):
        with open(flags.json, "w") as file:
            json.dump(document, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
