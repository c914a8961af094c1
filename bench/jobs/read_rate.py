"""Reads a file of torch.save in four ways, by turns: read_rate.py FOLDER MEGABYTES ROUNDS prints the seconds that each took."""
import json
import sys
import time

import numpy
import torch

from lockstep import reshape

TENSORS, COLUMNS = 8, 1000


def main(folder, megabytes, rounds):
    path = f"{folder}/saved.pt"
    rows = int(megabytes) * 1_000_000 // TENSORS // COLUMNS // 4
    torch.save({f"x{number}": torch.randn(rows, COLUMNS) for number in range(TENSORS)}, path)
    half = ((0, 0), (rows, COLUMNS // 2))

    def load(box):
        saved = reshape.open(path)
        return [numpy.array(array) for array in saved.load(dict.fromkeys(saved.tensors, box)).values()]

    ways = {"plain": lambda: numpy.fromfile(path, "u1"), "torch": lambda: torch.load(path), "whole": lambda: load(None), "half": lambda: load(half)}
    taken = {name: [] for name in ways}
    for _ in range(int(rounds)):
        for name, read in ways.items():
            began = time.perf_counter()
            read()
            taken[name].append(time.perf_counter() - began)
    print(json.dumps(taken))


if __name__ == "__main__":
    main(*sys.argv[1:])
