"""Why is my job slow, answered how fast: whole processes from file to answer, and the parts in one process (explain_rate.cc)."""
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import figure

DATA = pathlib.Path(os.environ.get("LOCKSTEP_DATA", pathlib.Path(__file__).resolve().parents[2] / "shared/data"))
ONE_CORE = ["taskset", "-c", "0"]
# What any tool in Python does first.
READ_CSV = "import csv, gzip, sys\nfor row in csv.reader(gzip.open(sys.argv[1], 'rt')): pass\n"
READ_JSON = "import gzip, json, sys\njson.load(gzip.open(sys.argv[1], 'rt'))\n"


def timed(command):
    """Seconds. Without a time limit: with one, subprocess looks for the end every 50 ms."""
    begin = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - begin


def samples(command, runs):
    timed(command)  # the file is in the page cache from now on
    return [timed(command) for _ in range(runs)]


def largest_memory(command):
    """MB, by a process of its own that has no other child."""
    program = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True); "
               "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    answer = subprocess.run([sys.executable, "-c", program, *command], stdout=subprocess.PIPE, check=True, text=True, timeout=300)
    return int(answer.stdout) / 1024


def straggler(tools, quick, folder):
    runs = 3 if quick else 21
    figures = []
    for trace, goal in ((f"trace-{job}{suffix}", goal) for job in ("AR", "SE") for suffix, goal in ((".csv.gz", 0.06), (".parquet", 0.25))):
        job = trace.split("-")[1].split(".")[0]
        command = [*ONE_CORE, tools.binary, "explain", str(DATA / "whatif" / trace), "--meta", str(DATA / "whatif" / f"meta-{job}.yaml"),
                   "--json", "--compat", str(folder)]
        figures.append(figure.from_samples(f"{trace}: cold process to report and published files, one core", "s", samples(command, runs), goal=goal))
    baseline = samples([*ONE_CORE, sys.executable, "-c", READ_CSV, str(DATA / "whatif/trace-AR.csv.gz")], 3)
    figures.append(figure.from_samples("baseline: Python's csv reads trace-AR.csv.gz, and does no more", "s", baseline))
    for job in ("AR", "SE"):
        answer = json.loads(subprocess.run([*ONE_CORE, tools.explain_rate, str(DATA / f"whatif/trace-{job}.csv.gz"),
                                            str(DATA / f"whatif/meta-{job}.yaml"), str(5 if quick else 50)],
                                           stdout=subprocess.PIPE, check=True, timeout=300).stdout)
        rates = [answer["ops"] / seconds / 1e9 for seconds in answer["replay_s"]]
        figures += [
            figure.from_samples(f"{job}: replay kernel, one core", "G ops/s", rates, goal=1.2, at_least=True),
            figure.from_samples(f"{job}: attribution to op types, ranks and stages", "s", answer["attribution_s"], goal=0.003 if job == "AR" else None),
            figure.from_samples(f"{job}: exact S_w of {answer['workers']} workers", "s", answer["by_worker_s"], goal=0.01 if job == "SE" else None),
            figure.from_samples(f"{job}: causes", "s", answer["causes_s"]),
            figure.single(f"{job}: memory per op", "bytes", answer["bytes_per_op"], goal=40),
        ]
    return figures if quick else figures + large(tools, folder)


def large(tools, folder):
    """AR 80 times: 10 times in a row, 8 times side by side."""
    trace, meta = folder / "large.parquet", folder / "large.yaml"
    subprocess.run([tools.explain_rate, "--repeat", str(DATA / "whatif/trace-AR.parquet"), "8", "10", str(trace)], stdout=subprocess.DEVNULL, check=True)
    meta.write_text("trial_name: large\ndp_size: 32\npp_size: 4\ntp_size: 4\nworld_size: 512\n")
    command = [tools.binary, "explain", str(trace), "--meta", str(meta), "--json"]
    return [figure.from_samples("AR x 80 (9.4 M ops), Parquet: cold process to report", "s", samples(command, 5), goal=0.9),
            figure.single("AR x 80 (9.4 M ops), Parquet: memory", "MB", largest_memory(command), goal=400)]


def watch(tools, quick, folder):
    """AR's rows in the order of their steps, followed as if they were just written: from the begin to the report of each window of 32 steps."""
    with gzip.open(DATA / "whatif/trace-AR.csv.gz", "rt") as file:
        header, *rows = file
    rows.sort(key=lambda row: int(row.split(",")[3]))
    growing = folder / "growing.csv"
    growing.write_text("".join([header, *rows]))
    steps = len({row.split(",")[3] for row in rows})
    command = [*ONE_CORE, tools.binary, "explain", "--watch", str(growing), "--meta", str(DATA / "whatif/meta-AR.yaml"), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        seconds, last = [], time.monotonic()
        for _ in range(steps - 1):  # the last step is not complete
            process.stdout.readline()
            now = time.monotonic()
            seconds.append(now - last)
            last = now
    finally:
        process.kill()
        process.wait()
    return [figure.from_samples("--watch: a step of AR read, and its window of 32 steps explained, one core", "s", seconds[32:])]


def fleet(tools, quick, folder):
    jobs = 8 if quick else 200
    for job in range(jobs):
        subprocess.run([tools.binary, "simulate", "trace", str(folder / f"fleet/{job}"), "--steps", "10", "--seed", str(job)],
                       stdout=subprocess.DEVNULL, check=True)
    rows = json.loads((folder / "fleet/0/labels.json").read_text())["rows"]
    rates = [jobs / seconds for seconds in samples([tools.binary, "explain", str(folder / "fleet"), "--json"], 3)]
    return [figure.from_samples(f"a fleet of {jobs} jobs of {rows} ops, all cores", "jobs/s", rates, at_least=True)]


def kineto(tools, quick, folder):
    """A real file of 54 MB of JSON, and a simulated job of 8 ranks."""
    real = folder / "rank-1.json"
    with open(real, "wb") as out:
        subprocess.run(["gzip", "-dc", str(DATA / "kineto/hta/df_index_resolver_rank1_of2.json.gz")], stdout=out, check=True)
    size = real.stat().st_size / 1e6
    runs = 3 if quick else 11
    rates = [size / seconds for seconds in samples([*ONE_CORE, tools.binary, "explain", "--kineto", str(real), "--json"], runs)]
    figures = [figure.from_samples(f"PyTorch profiler, one rank, {size:.0f} MB of JSON: file to report, one core", "MB/s", rates, goal=400, at_least=True)]
    zipped = DATA / "kineto/hta/df_index_resolver_rank1_of2.json.gz"
    baseline = [size / seconds for seconds in samples([*ONE_CORE, sys.executable, "-c", READ_JSON, str(zipped)], 2)]
    figures.append(figure.from_samples("baseline: Python's json reads the same, gzipped, and does no more", "MB/s", baseline))
    return figures


def measure(tools, quick):
    if not DATA.exists():
        raise LookupError(f"no traces in {DATA}; name the folder with LOCKSTEP_DATA")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-bench-"))
    try:
        return straggler(tools, quick, folder) + watch(tools, quick, folder) + fleet(tools, quick, folder) + kineto(tools, quick, folder)
    finally:
        shutil.rmtree(folder)
