"""The zygote: a process that has imported torch once and forks workers, so that a restart does not pay the import.

Safe only while it is single-threaded and has touched no accelerator; the probe below says whether that holds, and the starter falls
back to exec otherwise. Workers are forked through a parent that leaves at once: they become children of the starter (a
subreaper), which owns their exit statuses.

Requests: {"op": "store"} + [socket]: forks the store host. {"op": "spawn", "epoch", "module", "cwd", "workers": [{"rank", "command",
"env", "threads"}]} + [stdout, stderr per worker]: answers {"event": "spawned", "epoch", "pids"} or {"event": "spawn_failed", "epoch", "error"}.
"""

import atexit
import gc
import json
import os
import random
import signal
import sys
import threading
import time

from lockstep import _packets, _store


def main():
    sock = _packets.starter_socket()
    wanted = json.loads(os.environ.pop("LOCKSTEP_ZYGOTE_RESTORE", "{}"))
    began = time.monotonic()
    try:
        import torch
        import torch.distributed
        import torch.nn.parallel
    except Exception as error:
        _packets.send(sock, event="ready", ok=False, torch="", why=f"{sys.executable} cannot import torch: {error}")
        return 1
    why = unsafe_to_fork()
    _packets.send(sock, event="ready", ok=why is None, why=why or "", torch=torch.__version__, import_s=time.monotonic() - began)
    _restore_environment(wanted)
    gc.collect()
    gc.freeze()  # the collector of a child then leaves the shared pages alone
    return serve(sock)


def _restore_environment(wanted):
    """The starter sets thread counts to 1 for the import, and says what workers shall see instead; None is "not set"."""
    for name, value in wanted.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def unsafe_to_fork():
    """Why a fork of this process could break a worker, or None."""
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        return f"the import of torch left {len(threads)} threads running"
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")):
            return f"the import of torch opened {target}"
    return None


def serve(sock):
    while True:
        request, fds = _packets.receive(sock)
        if request is None:
            return 0
        if request["op"] == "store":
            if _fork_orphan() is None:
                _packets.send(sock, event="store_host", pid=os.getpid())
                sock.close()
                return _store.serve(_packets.socket.socket(fileno=fds[0]))
        else:
            worker = _spawn(sock, request, fds)
            if worker is not None:
                sock.close()
                return _become_worker(request, worker, fds)
        for fd in fds:
            os.close(fd)


def _fork_orphan():
    """Forks through a parent that leaves: True in the zygote, None in the orphan."""
    parent = os.fork()
    if parent != 0:
        os.waitpid(parent, 0)
        return True
    if os.fork() != 0:
        os._exit(0)
    return None


def _spawn(sock, request, fds):
    """Forks all workers of an epoch. Returns the worker's description in a worker, None in the zygote."""
    count = len(request["workers"])
    if len(fds) != 2 * count:
        _packets.send(sock, event="spawn_failed", epoch=request["epoch"], error=f"{count} workers came with {len(fds)} descriptors")
        return None
    parent = os.fork()
    if parent != 0:
        _, status = os.waitpid(parent, 0)
        if status != 0:
            _packets.send(sock, event="spawn_failed", epoch=request["epoch"], error=f"fork failed (status {status})")
        return None
    pids = []
    try:
        for index, worker in enumerate(request["workers"]):
            pid = os.fork()
            if pid == 0:
                return dict(worker, index=index)
            pids.append(pid)
        _packets.send(sock, event="spawned", epoch=request["epoch"], pids=pids)
    except OSError:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        os._exit(1)
    os._exit(0)


def _become_worker(request, worker, fds):
    """Turns this fork into what exec would have given: own session, stdio, environment, arguments, seeds, thread count."""
    os.setsid()
    os.dup2(fds[2 * worker["index"]], 1)
    os.dup2(fds[2 * worker["index"] + 1], 2)
    for fd in fds:
        os.close(fd)
    os.environ.update(worker["env"])
    os.environ["LOCKSTEP_WORKER_PID"] = str(os.getpid())
    os.chdir(request["cwd"])
    gc.unfreeze()
    _fresh_chance()
    _set_threads(worker["threads"])
    from lockstep._boot import prepare_worker

    prepare_worker()
    _leave(_exit_status(worker["command"], request["module"]))


def _exit_status(command, module):
    """Runs the script and says what its process exits with; an exception is printed as the interpreter prints it."""
    try:
        _run(*command, module=module)
        return 0
    except SystemExit as request:
        if request.code is None or isinstance(request.code, int):
            return request.code or 0
        print(request.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    return 1


def _leave(status):
    """Ends the worker without tearing the interpreter down: threads of torch that still take the GIL then abort the process now and then,
    and a finished job would count as a crash. What scripts may rely on is done: threads joined, atexit, output flushed.
    """
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)


def _fresh_chance():
    import torch

    random.seed()
    torch.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _set_threads(count):
    """The libraries read their environment at the import, when it said 1."""
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    _set_openblas_threads(int(os.environ.get("OPENBLAS_NUM_THREADS", count)))


def _set_openblas_threads(count):
    import ctypes

    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split()[-1] for line in maps if "openblas" in line}
        for path in paths:
            ctypes.CDLL(path).openblas_set_num_threads(count)
    except (OSError, AttributeError):
        pass  # another BLAS: it reads the environment itself, or has no threads


def _run(script, *args, module):
    """As `python -u script args...` does; exceptions pass through."""
    sys.argv[:] = [script, *args]
    if module:
        import runpy

        sys.path.insert(0, os.getcwd())
        return runpy.run_module(script, run_name="__main__", alter_sys=True)
    import types

    path = os.path.abspath(script)
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    main_module = types.ModuleType("__main__")
    main_module.__file__ = path
    main_module.__builtins__ = __builtins__
    sys.modules["__main__"] = main_module
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, main_module.__dict__)


if __name__ == "__main__":
    sys.exit(main())
