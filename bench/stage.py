"""Steps of a simulation from one process to another, and a model asked from the simulation (stage_path.cc). Measured on CPU."""
import json
import os
import subprocess

import figure
import session

ROUNDS = 5000
BY_PYTHON = """
import json, sys, time
import numpy
from lockstep.stage import Stream, Writer
rounds, took, field = int(sys.argv[1]), [], numpy.ones((256, 256), "float32")
with Writer("bench_python", "float32", (256, 256), k=4) as writer, Stream("bench_python") as stream:
    for step in range(rounds + rounds // 10):
        begin = time.perf_counter()
        writer.put(step, field)
        stream.next().array.sum()
        took.append(1e6 * (time.perf_counter() - begin))
print(json.dumps(took[rounds // 10:]))
"""


def answer(command):
    library = os.path.join(session.ROOT, "build", "release", "lib", "liblockstep-stage.so")
    environment = {**os.environ, "PYTHONPATH": os.path.join(session.ROOT, "python"), "LOCKSTEP_STAGE_LIB": library}
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=600).stdout)


def measure(tools, quick):
    rounds = 200 if quick else ROUNDS
    found = answer([tools.stage_path, str(rounds)])
    found["python"] = answer([tools.python, "-c", BY_PYTHON, str(rounds)])

    def row(key, name, **options):
        return figure.from_samples(name, "us", found[key], **options)

    return [
        row("put_get", "256 KB put and got, one process", goal=100),
        row("in_place", "... without the copy in and the read: staging itself", goal=None),
        row("copies", "... the copy and the read alone", goal=None, note="the baseline of the first"),
        row("across", "256 KB put and got, another process that waits", goal=100, note="from before reserve until all of it was read there; the wake-up is in it"),
        row("socket", "... through a unix socket", goal=None, note="the baseline: what a store behind a socket costs at least, one way"),
        row("python", "256 KB put and summed up, by Python, one process", goal=100),
        row("infer_1", "a model asked, overhead alone (1 x 1)", goal=50),
        row("infer_64", "a model asked, 64-64-64-64", goal=50),
        row("refresh", "weights asked for, nothing new", goal=None),
        row("swap", "new weights of 64-64-64-64 taken", goal=None),
    ]
