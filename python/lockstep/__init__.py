"""Lockstep inside a training script: three lines, and no-ops when the script was not launched by Lockstep.

    ckpt = lockstep.Checkpoint({"model": model, "optimizer": optimizer, "data": cursor})
    last = ckpt.restore()                    # last finished step, -1 at the beginning
    for i in range(last + 1, steps):
        ...
        ckpt.step(i, loss=loss)

A script without checkpoints calls lockstep.step(i, loss=loss), so that its progress is seen. @lockstep.restartable around the training
function lets the ranks that survive a fault keep their process. lockstep.replay() tells a script that `lockstep replay` runs it, to find a
bad machine, and what to shrink and report then. Importing this imports next to nothing: lockstep.feed, .reshape and .stage come when they
are first named.
"""
import os

__all__ = ["Checkpoint", "CheckpointError", "replay", "restartable", "step"]


def step(i, loss=None):
    """Training step `i` (a number that grows) has just finished. `loss`: a number or a tensor of one element."""
    if "LOCKSTEP_RUN" not in os.environ:
        return
    from . import _client

    client = _client.join()
    if client is not None:
        client.step(i, loss)


def replay():
    """None, unless this script is run on a group of machines to find a bad one: then a _replay.Replay. A run that gets to that, by
    `lockstep run`, replays a script that has asked."""
    if "LOCKSTEP_REPLAY" not in os.environ:
        if "LOCKSTEP_RUN" in os.environ:
            _opt_in(os.path.join(os.environ["LOCKSTEP_RUN"], "opted_in"))
        return None
    from . import _replay

    return _replay.current()


def _opt_in(folder):
    """For the agent of this machine, by the version of the code. One that can't be written costs the opt-in, and no more."""
    try:
        os.makedirs(folder, exist_ok=True)
        open(os.path.join(folder, os.environ.get("LOCKSTEP_CODE_VERSION", "0")), "a").close()
    except OSError:
        pass


def __getattr__(name):
    if name in ("Checkpoint", "CheckpointError"):
        from . import checkpoint

        return getattr(checkpoint, name)
    if name == "restartable":
        from ._restart import restartable

        return restartable
    if name in ("feed", "reshape", "stage"):
        from importlib import import_module

        return import_module(f".{name}", __name__)
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
