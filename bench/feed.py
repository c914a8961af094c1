"""How many photos one core turns into tensors (random resized crops, 224 x 224 RGB bytes), beside torch's DataLoader with two workers on the same machine. Measured on CPU."""
import json
import os
import subprocess
import tempfile

import figure
import session

ROUNDS, QUICK_ROUNDS = 5, 2
GOAL, STRETCH = 1400, 1700  # images per second and core, of photos of 57 KB


def measure(tools, quick):
    rounds = QUICK_ROUNDS if quick else ROUNDS
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        made = output(tools.python, os.path.join(session.HERE, "photos.py"), folder, "64" if quick else "512")
        ours, torchs = [], []
        for _ in range(rounds):  # in turns, so that both meet the same machine
            ours.append(bench(tools, folder, 3))
            torchs.append(loader(tools, folder, 6 if quick else 20))
    return list(figures(made, ours, torchs))


def figures(made, ours, torchs):
    note = f"{made['images']} parts of {made['photos']} photos, mean {made['mean_bytes'] / 1e3:.1f} KB; read from the page cache; resize by {ours[0]['resize_kernels']}"
    plain = [one["images_per_s_per_core"] for one in ours]
    tiled = [one["with_tile_index"]["images_per_s_per_core"] for one in ours]
    two_cores = [2 * one["wall"]["median"] for one in ours]
    parts = {name: [one["parts_us"][name]["median"] for one in ours] for name in ours[0]["parts_us"]}
    yield figure.from_samples("files as they are, by CPU time", "images/s/core", plain, goal=GOAL, at_least=True, note=note)
    yield figure.from_samples("with a tile index, by CPU time", "images/s/core", tiled, goal=STRETCH, at_least=True)
    yield from (figure.from_samples(f"... {name.replace('_', ' ')}", "us", values) for name, values in parts.items())
    yield figure.from_samples("baseline: torch DataLoader, 2 workers, wall", "images/s", torchs, note="torchvision's RandomResizedCrop(224) and flip, bytes out, batches of 64")
    yield figure.from_samples("two cores as fast as the one measured, against the baseline", "x", [a / b for a, b in zip(two_cores, torchs)], goal=3.3, at_least=True,
                              note="files as they are; one thread measured by wall clock, times two: the program itself runs one")


def bench(tools, folder, passes):
    return output(tools.binary, "feed", "bench", "--dir", folder, "--passes", str(passes), "--json")


def loader(tools, folder, batches):
    return output(tools.python, session.job("torch_loader.py"), folder, "2", str(batches))["images_per_s"]


def output(*command):
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600).stdout)
