"""How well `lockstep plan` predicts published runs, by rates that were fitted without them; and how fast it is. Predicted; the program itself measured on CPU.

Each run is predicted by rates of its hardware that were fitted without its fold (a fifth of the runs, by a sum over the letters of its id), and
once more without its family: what was learnt from others' software alone."""
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
import session

DATA = os.environ.get("LOCKSTEP_DATA", os.path.join(session.ROOT, "..", "shared", "data"))
TABLES = ("perf/measured_train.csv", "perf/measured_train_vtrain_single.csv")
FOLDS = 5
# Families of one kind, and the mean error that is asked for.
GOALS = {"Megatron and NeMo, dense": (("dgxc-gpt3", "dgxc-llama3-8b", "dgxc-llama3-70b", "dgxc-llama3.1", "dgxc-nemotron", "nemo-h100", "megatron", "sc21", "seqsel"), 6),
         "FSDP of llm-foundry": (("mpt-",), 8), "BLOOM": (("bloom",), 10), "vTrain, several nodes": (("vtrain-multi",), 9),
         "vTrain, one node": (("vtrain-single",), 15), "torchtitan": (("torchtitan",), 15), "mixtures of experts": (("bridge", "automodel"), 20)}
SEARCHED = ["--model", "llama3-70b", "--cluster", "dgx-h100:512", "--batch", "2048", "--precision", "fp8"]


def measure(tools, quick):
    missing = [name for name in TABLES if not os.path.exists(os.path.join(DATA, name))]
    if missing:
        return [figure.single("plan: not measured", "", None, goal=0, note=f"no {', '.join(missing)} in {DATA}; LOCKSTEP_DATA says where")]
    bench = Bench(tools)
    by_fold, by_family = bench.predict(fold_of, range(FOLDS)), [] if quick else bench.predict(lambda row: row["family"], None)
    return [*families(by_fold), *overall("", by_fold, 0.1), *overall(", without its family", by_family, 0.12), *bench.parity(), bench.speed()]


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

    def _rates_of(self, row):
        name = row["hardware"].lower()
        return next(kind for kind in ("gb200", "gb300", "b200", "b300", "a100", "h100") if name.startswith(kind))

    def predict(self, part_of, parts):
        """[(row, prediction)] of all that could be predicted."""
        found = []
        by_rates = collections.defaultdict(list)
        for row in self._rows:
            by_rates[self._rates_of(row)].append(row)
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("kept.csv", "out.csv", "rates.toml")]
            for rates, rows in by_rates.items():
                for part in parts or sorted({part_of(row) for row in rows}):
                    out = [row for row in rows if part_of(row) == part]
                    write(paths[0], [row for row in rows if part_of(row) != part])
                    write(paths[1], out)
                    if not out or not self._plan("calibrate", paths[0], "--rates", rates, "-o", paths[2]):
                        continue
                    known = {row["id"]: row for row in out}
                    found += [(known[one["id"]], one) for one in self._plan("validate", paths[1], "--calibration", paths[2], "--rows")["rows"]]
        return found

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


def write(path, rows):
    text = io.StringIO()
    if rows:
        table = csv.DictWriter(text, rows[0])
        table.writeheader()
        table.writerows(rows)
    with open(path, "w") as file:
        file.write(text.getvalue())


def errors(pairs):
    return [100 * (one["step_time_s"] / float(row["step_time_s"]) - 1) for row, one in pairs]


def families(pairs):
    for name, (prefixes, goal) in GOALS.items():
        some = errors([pair for pair in pairs if pair[0]["family"].startswith(prefixes) and "maxtext" not in pair[0]["family"]])
        if not some:
            continue
        note = f"n {len(some)}, median {statistics.median(map(abs, some)):.1f} %, bias {statistics.mean(some):+.1f} %"
        yield figure.single(f"{name}: mean error of a step", "%", statistics.mean(map(abs, some)), goal=goal, note=note)


def overall(which, pairs, goal):
    if not pairs:
        return
    some = errors(pairs)
    covered = sum(one["lo80"] <= float(row["step_time_s"]) <= one["hi80"] for row, one in pairs) / len(pairs)
    yield figure.single(f"all runs{which}: median error of a step", "%", statistics.median(map(abs, some)), goal=100 * goal,
                        note=f"n {len(some)}, mean {statistics.mean(map(abs, some)):.1f} %, bias {statistics.mean(some):+.1f} %")
    yield figure.single(f"all runs{which}: in the 80 % interval", "%", 100 * covered, note="70 to 90 asked for")
