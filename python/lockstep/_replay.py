"""What a script is told that `lockstep replay` runs on a group of machines, and what it tells in return.

    replay = lockstep.replay()                        # None in every ordinary run
    layers, steps = (replay.layers, replay.steps) if replay else (96, 100_000)
    ...
        loss.backward()
        if replay:
            replay.check(step, {name: p.grad for name, p in model.named_parameters()}, loss=loss)

Everything must be the same in each group: weights, data and seeds come from the rank in the group, not from the machine. Then the values
that are checked have the same bits wherever the machines are well, and those that differ, or are no numbers, make their group fail.
"""

import ctypes
import hashlib
import json
import os
import signal
import time

SCOPES = ("rank", "group", "everywhere")
_current = []


def current():
    if not _current:
        _current.append(Replay(json.loads(os.environ["LOCKSTEP_REPLAY"])))
    return _current[0]


class Replay:
    """layers, steps: how much to run. machine: whose ranks we are. machines: of this group. rank, ranks: of this process in the group.
    run: counts the runs of this search.
    """

    def __init__(self, plan):
        self.layers, self.steps, self.run = plan["layers"], plan["steps"], plan["run"]
        self.machine, self.machines = plan["machine"], plan["machines"]
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._report = open(plan["report"], "a", encoding="utf-8")

    def check(self, step, values, loss=None, scope="rank"):
        """Reports a tensor, or a dict of names and tensors, after training step `step`: a digest of the bits, and how many are NaN or infinite.

        scope: where the same bits are to be expected. "rank": at the same rank of every group of as many ranks; "group": at all ranks of
        these, as of weights and reduced gradients under data parallelism; "everywhere": at all ranks of all groups.
        """
        if scope not in SCOPES:
            raise ValueError(f"scope must be one of {', '.join(SCOPES)}, found {scope!r}")
        if not isinstance(values, dict):
            values = {"value": values}
        found = {str(name): _digest(value) for name, value in values.items() if value is not None}
        if loss is not None:
            found["loss"] = _digest(loss)
        self._report.write(json.dumps({"step": int(step), "scope": scope, "values": found}) + "\n")
        self._report.flush()


def _digest(value):
    """[digest of the bits, how many are not finite]"""
    if not hasattr(value, "detach"):
        number = float(value)
        return [_hash(number.hex().encode()), int(number != number or number in (float("inf"), float("-inf")))]
    import torch

    value = value.detach()
    if value.is_floating_point() or value.is_complex():
        not_finite = int(value.numel() - torch.isfinite(value).sum().item())
    else:
        not_finite = 0
    return [_hash(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()), not_finite]


def _hash(data):
    return hashlib.sha256(data).hexdigest()[:16]


_PR_SET_PDEATHSIG = 1


def end_with_runner():
    """No rank of a replay outlives `lockstep replay`, even one that is killed. Called at the start of each, whether its script opts in or not."""
    runner = json.loads(os.environ["LOCKSTEP_REPLAY"])["runner"]
    deadline = time.monotonic() + 10
    while os.getppid() != runner:  # who forked us leaves first; then we are the runner's, if there still is one
        if time.monotonic() > deadline or not os.path.exists(f"/proc/{runner}"):
            os._exit(1)
        time.sleep(0.002)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != runner:
        os._exit(1)
