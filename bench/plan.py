"""How well `lockstep plan` predicts published runs, by rates that were fitted without them; and how fast it is. Predicted; the program itself measured on CPU.

Each run is predicted by rates of its hardware that were fitted without its fold (a fifth of the runs, by a sum over the letters of its id), and
once more without its family: what was learnt from others' software alone. All hardware and software is fitted at once, from what is usual.

Writes plan_step_time.svg, plan_unseen.svg and plan_memory.svg to build/plan/: predicted against measured. docs/models/ has copies."""
import collections
import csv
import io
import json
import os
import statistics
import subprocess
import tempfile
import time

import figure
import scatter
import session

DATA = os.environ.get("LOCKSTEP_DATA", os.path.join(session.ROOT, "..", "shared", "data"))
TABLES = ("perf/measured_train.csv", "perf/measured_train_vtrain_single.csv")
FOLDS = 5
OUT = os.path.join(session.ROOT, "build", "plan")
GIB_OF = "mem_gib"
# Families of one kind, and the mean error that is asked for.
GOALS = {"Megatron and NeMo, dense": (("dgxc-gpt3", "dgxc-llama3-8b", "dgxc-llama3-70b", "dgxc-llama3.1", "dgxc-nemotron", "nemo-h100", "megatron", "sc21", "seqsel"), 6),
         "FSDP of llm-foundry": (("mpt-",), 8), "BLOOM": (("bloom",), 10), "vTrain, several nodes": (("vtrain-multi",), 9),
         "vTrain, one node": (("vtrain-single",), 15), "torchtitan": (("torchtitan",), 15), "mixtures of experts": (("bridge", "automodel"), 20),
         "B200, measured by SimuMax": (("simumax",), None)}
SEARCHED = ["--model", "gpt3-175b", "--cluster", "dgx-h100:512", "--batch", "3072", "--space", "whole", "--schedule", "1f1b,zb-h1,zb-2p,dualpipe", "--threads", "1"]


def measure(tools, quick):
    missing = [name for name in TABLES if not os.path.exists(os.path.join(DATA, name))]
    if missing:
        return [figure.single("plan: not measured", "", None, goal=0, note=f"no {', '.join(missing)} in {DATA}; LOCKSTEP_DATA says where")]
    bench = Bench(tools)
    by_fold, by_family = bench.predict(fold_of), [] if quick else bench.predict(lambda row: row["family"])
    remembered = bench.memory()
    draw(by_fold, by_family, remembered)
    return [*families(by_fold), *families(by_family, without=True), *overall("", by_fold, 0.1), *overall(", without its family", by_family, 0.12), *remembering(remembered), *bench.ranking(),
            *bench.parity(), bench.speed(), *graph_speed(tools)]


def fold_of(row):
    return sum(map(ord, row["id"])) % FOLDS


class Bench:
    def __init__(self, tools):
        self._binary = tools.binary
        self._rows = []
        for name in TABLES:
            with open(os.path.join(DATA, name), newline="") as file:
                self._rows += [row for row in csv.DictReader(file) if row["step_time_s"]]

    def _plan(self, *words):
        done = subprocess.run([self._binary, "plan", *words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def predict(self, part_of):
        """[(row, prediction)] of all that could be predicted, each by what was fitted without its part."""
        found = []
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("kept.csv", "out.csv", "calibration")]
            for part in sorted({part_of(row) for row in self._rows}):
                out = [row for row in self._rows if part_of(row) == part]
                write(paths[0], [row for row in self._rows if part_of(row) != part])
                write(paths[1], out)
                self._plan("calibrate", paths[0], "--fresh", "-o", paths[2])
                known = {row["id"]: row for row in out}
                found += [(known[one["id"]], one) for one in self._plan("validate", paths[1], "--calibration", paths[2], "--rows")["rows"]]
        return found

    def _validated(self, *words):
        for name in TABLES:
            yield os.path.join(DATA, name), self._plan("validate", os.path.join(DATA, name), *words)

    def memory(self):
        """[(row, prediction)] of all runs whose memory was measured, or that had too little of it."""
        found = []
        for path, report in self._validated("--rows"):
            with open(path, newline="") as file:
                known = {row["id"]: row for row in csv.DictReader(file)}
            found += [(known[one["id"]], one) for one in report["rows"]]
        return found

    def ranking(self):
        groups = [group for _, report in self._validated() for group in report["ranking"]]
        taus, regrets = [group["tau"] for group in groups], [100 * group["regret"] for group in groups]
        note = f"{len(groups)} groups of five or more layouts of one model, by the presets"
        yield figure.single("layouts ranked: Kendall's tau, mean of groups", "", statistics.mean(taus), goal=0.75, at_least=True, note=note)
        yield figure.single("layouts ranked: what the pick takes beyond the best", "%", statistics.mean(regrets), goal=2, note=f"mean; median {statistics.median(regrets):.1f} %")

    def parity(self):
        configs, golden = (os.path.join(DATA, "perf", name) for name in ("madmax_configs.json", "madmax_golden.csv"))
        madmax = self._plan("madmax", "--configs", configs, "--golden", golden)
        yield figure.single("MAD-Max: largest relative error of an iteration", "", madmax["max_rel_iter_ms"], goal=1e-9, note=f"{madmax['rows']} rows")
        yield figure.single("MAD-Max: ... of exposed communication", "", madmax["max_rel_exposed_ms"], goal=1e-9)
        for name in ("parm_grid.csv", "fsmoe_grid.csv"):
            grid = self._plan("moe", os.path.join(DATA, "moe", name))
            yield figure.single(f"{name}: wrong choices", "", grid["wrong_choices"], goal=0, note=f"{grid['rows']} rows, times within {grid['max_rel_ms']:.1g}")

    def speed(self):
        rates = []
        for _ in range(9):
            begin = time.monotonic()
            candidates = self._plan(*SEARCHED)["candidates"]
            rates.append(candidates / (time.monotonic() - begin))
        return figure.from_samples("layouts tried per second, one core, with the start of the program", "/s", rates, goal=1e7, at_least=True,
                                   note=f"{' '.join(SEARCHED)}: {candidates} candidates")


def graph_speed(tools):
    for least, of in ((0, "up to a thousand ops"), (900, "900 to 1,000 ops")):
        answer = json.loads(subprocess.run([tools.step_graph_rate, str(least), "15"], stdout=subprocess.PIPE, text=True, check=True).stdout)
        yield figure.from_samples(f"graphs of {of}, built and replayed per second, one core", "/s", answer["per_s"], goal=None if least else 2e4, at_least=True,
                                  note=f"{answer['configurations']} layouts, {answer['ops']:.0f} ops in the mean, at most {answer['most_ops']}")


def write(path, rows):
    text = io.StringIO()
    if rows:
        table = csv.DictWriter(text, rows[0])
        table.writeheader()
        table.writerows(rows)
    with open(path, "w") as file:
        file.write(text.getvalue())


def draw(by_fold, by_family, remembered):
    os.makedirs(OUT, exist_ok=True)
    for name, title, pairs in (("step_time", "Step time, by a fit without the run", by_fold), ("unseen", "Step time, by a fit without the run's family", by_family)):
        if pairs:
            series = [scatter.Series(kind, [(float(row["step_time_s"]), one["step_time_s"]) for row, one in of_kind(pairs, prefixes)])
                      for kind, (prefixes, _) in GOALS.items()]
            save(name, scatter.document(title, "s", [one for one in series if one.points]))
    measured = [(row["family"], float(row[GIB_OF]), memory_of(row, one)) for row, one in remembered if row[GIB_OF]]
    series = [scatter.Series(family, [(gib, ours) for name, gib, ours in measured if name == family]) for family in sorted({name for name, _, _ in measured})]
    if series:
        save("memory", scatter.document("Memory of the rank that takes most", "GiB", series))


def save(name, text):
    with open(os.path.join(OUT, f"plan_{name}.svg"), "w") as file:
        file.write(text)


def of_kind(pairs, prefixes):
    return [pair for pair in pairs if pair[0]["family"].startswith(prefixes) and "maxtext" not in pair[0]["family"]]


def memory_of(row, one):
    return one["mem_total_gib"] if "nvidia-smi" in row["notes"] else one["mem_gib"]


def remembering(pairs):
    some = [100 * abs(memory_of(row, one) / float(row[GIB_OF]) - 1) for row, one in pairs if row[GIB_OF]]
    if not some:
        return
    b200 = [100 * abs(memory_of(row, one) / float(row[GIB_OF]) - 1) for row, one in pairs if row[GIB_OF] and row["hardware"].startswith("B200")]
    yield figure.single("memory: mean error", "%", statistics.mean(some), goal=8, note=f"n {len(some)}, nothing of it is fitted")
    yield figure.single("memory of B200: mean error", "%", statistics.mean(b200), goal=3, note=f"n {len(b200)}")
    labels = [one for row, one in pairs if row["notes"].startswith("OOM")]
    yield figure.single("runs out of memory that are predicted to fit", "runs", sum(one["fits"] for one in labels), goal=0, note=f"of {len(labels)}")
    others = [one for row, one in pairs if not row["notes"].startswith("OOM")]
    yield figure.single("runs that fitted and are predicted not to", "runs", sum(not one["fits"] for one in others), goal=0, note=f"of {len(others)}")


def errors(pairs):
    return [100 * (one["step_time_s"] / float(row["step_time_s"]) - 1) for row, one in pairs]


def families(pairs, without=False):
    biases = {}
    for name, (prefixes, goal) in GOALS.items():
        some = errors(of_kind(pairs, prefixes))
        if not some:
            continue
        note = f"n {len(some)}, median {statistics.median(map(abs, some)):.1f} %, bias {statistics.mean(some):+.1f} %, {covered(of_kind(pairs, prefixes)):.0f} % in the 80 % interval"
        which = ", without its family" if without else ""
        yield figure.single(f"{name}{which}: mean error of a step", "%", statistics.mean(map(abs, some)), goal=None if without else goal, note=note)
        biases[name] = statistics.mean(some)
    if biases and not without:
        worst = max(biases, key=lambda name: abs(biases[name]))
        yield figure.single("kinds of runs: largest bias", "%", abs(biases[worst]), goal=4, note=f"{worst}: {biases[worst]:+.1f} %")


def overall(which, pairs, goal):
    if not pairs:
        return
    some = errors(pairs)
    yield figure.single(f"all runs{which}: median error of a step", "%", statistics.median(map(abs, some)), goal=100 * goal,
                        note=f"n {len(some)}, mean {statistics.mean(map(abs, some)):.1f} %, bias {statistics.mean(some):+.1f} %")
    yield figure.single(f"all runs{which}: in the 80 % interval", "%", covered(pairs), note="70 to 90 asked for")


def covered(pairs):
    return 100 * sum(one["lo80"] <= float(row["step_time_s"]) <= one["hi80"] for row, one in pairs) / len(pairs)
