"""One rank that keeps a tensor of every kind in its checkpoint: `lockstep run tests/e2e/jobs/kinds.py OUT`.

Each step adds 1 to the counter. OUT gets the counter with which the job began and the one with which it ended.
"""
import json
import sys

import torch

STEPS = 3


def tensors():
    """The same ones whenever it is called."""
    torch.manual_seed(7)
    kinds = {name: torch.randint(0, 2, (3, 5)).to(getattr(torch, name)) for name in ("bool", "uint8", "int8", "int16", "int32", "int64")}
    floats = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
    kinds.update({name: torch.randn(2, 3).to(getattr(torch, name)) for name in floats})
    kinds["channels_last"] = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    kinds["transposed"] = torch.randn(4, 6).t()
    kinds["strided"] = torch.randn(9)[::2]
    kinds["scalar"] = torch.tensor(2.5)
    kinds["empty"] = torch.empty(0, 4)
    return kinds


def main():
    import lockstep

    state = {"counter": torch.zeros((), dtype=torch.int64), "kinds": tensors(), "plain": {"text": "häuser", "list": [1, 2.5, None]}}
    ckpt = lockstep.Checkpoint(state)
    start = ckpt.restore() + 1
    began = int(state["counter"])
    for step in range(start, start + STEPS):
        state["counter"] += 1
        ckpt.step(step)
    with open(sys.argv[1], "w") as file:
        json.dump({"start": start, "began": began, "ended": int(state["counter"])}, file)


if __name__ == "__main__":
    main()
