"""Faults inside a worker, at the request of `lockstep drill`. Only runs started with --allow-drill load this.

A request is a file beside the worker's stacks, {"fault": "exit", "code": 3}, and then a signal. Taking it removes the file: that is the
answer. At rest there is only a signal handler; a signal without a file means nothing.
"""
import gc
import json
import os
import signal
import sys

SIGNAL = signal.SIGRTMIN + 8


def take_requests(path):
    """Call in the main thread. Raises ValueError elsewhere."""
    signal.signal(SIGNAL, lambda *_: _take(path))


def _take(path):
    try:
        with open(path) as file:
            request = json.load(file)
        os.remove(path)
        strike = _FAULTS[request["fault"]]
    except (OSError, ValueError, KeyError, TypeError):
        return  # not meant for us, or withdrawn: training goes on
    strike(request)


def _exit(request):
    """No exception: a script may catch that, and another thread may hold the exit up."""
    os._exit(int(request["code"]))


def _hang_in_python(_):
    """A C loop without end that never gives up the GIL: no Python code runs in this process again."""
    import collections
    import itertools

    collections.deque(itertools.repeat(None), maxlen=0)


def _hang_in_native_code(_):
    """Locks a mutex twice. A futex wait is resumed after a signal, so that nothing but death ends it."""
    import ctypes

    mutex = ctypes.create_string_buffer(64)  # all zeros: PTHREAD_MUTEX_INITIALIZER; 40 bytes on x86-64, 48 on arm64
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def _spoil_next_gradient(_):
    """One gradient becomes NaN before the next optimizer.step(), as a flipped bit or an overflow would make it."""
    from lockstep.checkpoint import before_next_step

    optimizers = _optimizers()
    if not optimizers:
        print("lockstep: drill: there is no optimizer whose gradient could become NaN", file=sys.stderr, flush=True)
    for optimizer in optimizers[:1]:
        before_next_step(optimizer, lambda: _spoil(optimizer))


def _optimizers():
    """Found, not registered: at rest nobody pays for a drill. type(), since a proxy's __class__ may run anything."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    return [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]


def _spoil(optimizer):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.fill_(float("nan"))
                return


_FAULTS = {"exit": _exit, "hang-python": _hang_in_python, "hang-native": _hang_in_native_code, "nan": _spoil_next_gradient}
