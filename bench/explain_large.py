"""A profiler's file of 5 GB, far more than the JSON library takes as one document: a real one of 54 MB over and over, each time later.

Most of the time goes into making it.
"""
import gzip
import pathlib
import re
import shutil
import tempfile

import explain
import figure

COPIES = 94
NUMBERS = re.compile(r'"ts": (\d{10,})|("correlation": |"External id": |"id": )(\d+)|ProfilerStep#(\d+)')
APART = 3_000_000  # more than a file has of correlations


def shifted(body, copy, seconds, steps):
    def later(match):
        time, key, number, step = match.groups()
        if time:
            return f'"ts": {int(time) + copy * seconds}'
        if key:
            return f"{key}{int(number) + copy * APART}"
        return f"ProfilerStep#{int(step) + copy * steps}"

    return NUMBERS.sub(later, body)


def write(path, copies):
    with gzip.open(explain.DATA / "kineto/hta/df_index_resolver_rank1_of2.json.gz", "rt") as file:
        text = file.read()
    begin = text.index('"traceEvents": [') + len('"traceEvents": [')
    end = text.rindex("]")
    body = text[begin:end].rstrip()
    times = [int(time) for time in re.findall(r'"ts": (\d{10,})', body)]
    steps = {int(step) for step in re.findall(r"ProfilerStep#(\d+)", body)}
    with open(path, "w", encoding="utf-8") as out:
        out.write(text[:begin])
        for copy in range(copies):
            out.write("," if copy else "")
            out.write(shifted(body, copy, max(times) - min(times) + 1000, max(steps) - min(steps) + 1))
        out.write(text[end:])


def measure(tools, quick):
    if not explain.DATA.exists():
        raise LookupError(f"no traces in {explain.DATA}; name the folder with LOCKSTEP_DATA")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-bench-"))
    try:
        path = folder / "rank-1.json"
        write(path, 4 if quick else COPIES)
        size = path.stat().st_size / 1e6
        command = [tools.binary, "explain", "--kineto", str(path), "--json"]
        rates = [size / explain.timed(command) for _ in range(3)]
        return [figure.single(f"PyTorch profiler, one rank, {size:.0f} MB of JSON: memory", "MB", explain.largest_memory(command), goal=300),
                figure.from_samples(f"PyTorch profiler, one rank, {size:.0f} MB of JSON: file to report, all cores", "MB/s", rates, at_least=True)]
    finally:
        shutil.rmtree(folder)
