"""Steps of a simulation from one process to another, and a model asked from the simulation (stage_path.cc). Measured on CPU."""
import json
import subprocess

import figure

ROUNDS = 5000


def measure(tools, quick):
    rounds = 200 if quick else ROUNDS
    found = json.loads(subprocess.run([tools.stage_path, str(rounds)], stdout=subprocess.PIPE, check=True, timeout=600).stdout)

    def row(key, name, **options):
        return figure.from_samples(name, "us", found[key], **options)

    return [
        row("put_get", "256 KB put and got, one process", goal=100),
        row("in_place", "... without the copy in and the read: staging itself", goal=None),
        row("copies", "... the copy and the read alone", goal=None, note="the baseline of the first"),
        row("across", "256 KB put and got, another process that waits", goal=100, note="from before reserve until all of it was read there; the wake-up is in it"),
        row("socket", "... through a unix socket", goal=None, note="the baseline: what a store behind a socket costs at least, one way"),
        row("infer_1", "a model asked, overhead alone (1 x 1)", goal=50),
        row("infer_64", "a model asked, 64-64-64-64", goal=50),
        row("refresh", "weights asked for, nothing new", goal=None),
        row("swap", "new weights of 64-64-64-64 taken", goal=None),
    ]
