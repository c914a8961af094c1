"""The zygote: a process that has imported torch once and forks workers, so that a restart does not pay the import.

Safe only while it is single-threaded and has touched no accelerator; the probe below says whether that holds, and the starter falls
back to exec otherwise. Workers are forked through a parent that leaves at once: they become children of the starter (a
subreaper), which owns their exit statuses.

When an epoch has begun and nothing more is asked for a while, the workers of the next one are forked ahead: a restart then does not
wait for forks either. They hold no more memory than what they have written, and wait in a nest, the process that forked them, until
they get their rank, environment and output.

Requests: {"op": "store"} + [socket]: forks the store host. {"op": "spawn", "epoch", "module", "cwd", "code": {"from", "to"}, "changed": {variables
that an update has set, which are in each "env" too}, "workers": [{"rank", "command", "env", "threads"}]} + [stdout, stderr per worker]: answers {"event": "spawned", "epoch",
"pids"} or {"event": "spawn_failed", "epoch", "error"}.
"""

import sys

_AT_START = frozenset(sys.modules) | frozenset(sys.builtin_module_names)  # no file beside a script stands for these

import _thread
import atexit
import gc
import io
import json
import os
import random
import select
import signal
import socket
import stat
import threading
import time
import weakref

from lockstep import _anew, _boot, _packets, _store, _version


_RESTORE = "LOCKSTEP_ZYGOTE_RESTORE"
_PRELOAD = os.environ.pop("LOCKSTEP_ZYGOTE_PRELOAD", "")  # for processes begun by exec: the collectors leave the environment when loaded


def main():
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # that of -m: the working directory, which is no worker's
    sock = _packets.starter_socket()
    wanted = json.loads(os.environ.pop(_RESTORE, "{}"))
    began = time.monotonic()
    try:
        import torch
        import torch.distributed
        import torch.nn.parallel

        # So that no worker reads them again: what it needs of ours, and what most scripts begin with.
        import argparse  # noqa: F401
        import faulthandler  # noqa: F401

        from lockstep import _plan, _state, checkpoint  # noqa: F401
    except Exception as error:
        _packets.send(sock, event="ready", ok=False, torch="", why=f"{sys.executable} cannot import torch: {error}")
        return 1
    with_compiler = _import_compiler(torch)
    why = unsafe_to_fork()
    if why is not None and with_compiler:
        _begin_without_compiler(sock, wanted)
    _packets.send(sock, event="ready", ok=why is None, why=why or "", torch=torch.__version__, import_s=time.monotonic() - began)
    _restore_environment(wanted)
    _find_openblas()
    gc.collect()
    gc.freeze()  # the collector of a child then leaves the shared pages alone
    return serve(sock)


def _import_compiler(torch):
    """torch 2 imports its compiler when the first optimizer is made, which takes every process a second. True: it is imported."""
    if os.environ.pop(_NO_COMPILER, "") or not hasattr(torch, "_disable_dynamo"):
        return False
    try:
        import torch._dynamo
    except Exception:
        pass  # a worker that needs it will say why
    return True


_NO_COMPILER = "LOCKSTEP_ZYGOTE_WITHOUT_COMPILER"


def _begin_without_compiler(sock, wanted):
    """By exec: what an import has opened or started can't be undone."""
    os.set_inheritable(sock.fileno(), True)
    os.environ.update({_NO_COMPILER: "1", "LOCKSTEP_STARTER_FD": str(sock.fileno()), _RESTORE: json.dumps(wanted)})
    if _PRELOAD:
        os.environ.update(LD_PRELOAD=_PRELOAD, LOCKSTEP_ZYGOTE_PRELOAD=_PRELOAD)
    os.execv(sys.executable, [sys.executable, "-u", "-m", "lockstep._zygote"])


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


_QUIET_S = 0.5  # an epoch that has begun is left alone for so long


def serve(sock):
    nest, most = None, 0  # workers of an epoch, so far
    while True:
        if nest is None and most > 0 and not select.select([sock], [], [], _QUIET_S)[0]:
            nest, wanted = _fork_ahead(sock, most)
            if wanted is not None:
                return _become_worker(*wanted)
            continue
        request, fds = _packets.receive(sock)
        if request is None:
            return 0
        if request["op"] == "store":
            if _fork_orphan() is None:
                if nest is not None:
                    nest.leave()
                _packets.send(sock, event="store_host", pid=os.getpid())
                sock.close()
                return _store.serve(_packets.socket.socket(fileno=fds[0]))
        else:
            most = max(most, len(request["workers"]))
            worker = None
            if nest is None or not nest.hatch(request, fds):
                worker = _spawn(sock, request, fds)
            nest = None
            if worker is not None:
                sock.close()
                _begin_anew()
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
    _ready_heap()
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


class _Nest:
    """Workers forked ahead, and the process that has them as children."""

    def __init__(self, pid, sock, count):
        self._pid, self._sock, self._count = pid, sock, count

    def hatch(self, request, fds):
        """Makes them the workers of an epoch; those that are too many end. False: all have ended, none was made a worker."""
        count = len(request["workers"])
        try:
            if count <= self._count and len(fds) == 2 * count:
                socket.send_fds(self._sock, [json.dumps(request).encode()], fds)
        except OSError:
            pass  # it is dead
        self.leave()
        _, status = os.waitpid(self._pid, 0)
        return status == 0

    def leave(self):
        self._sock.close()


def _fork_ahead(sock, count):
    """(the nest, None) in the zygote, or (None, None) if it can't be had; (None, what _become_worker needs) in a worker that is wanted."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        nest = os.fork()
    except OSError:
        return None, None
    if nest != 0:
        theirs.close()
        return _Nest(nest, ours, count), None
    ours.close()
    return None, _be_nest(sock, theirs, count)


def _be_nest(sock, zygote, count):
    """Forks workers, waits for what they are to be, hands it out and ends; with the zygote at the latest. Returns in a worker only."""
    _ready_heap()
    pids, sockets = [], []
    try:
        for _ in range(count):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pid = os.fork()
            if pid == 0:
                for other in (sock, zygote, ours, *sockets):
                    other.close()
                return _wait_in_nest(theirs)
            theirs.close()
            pids.append(pid)
            sockets.append(ours)
        request, fds = _packets.receive(zygote)
        if request is None:
            os._exit(1)
        workers = request.pop("workers")
        for index, worker in enumerate(workers):
            socket.send_fds(sockets[index], [json.dumps({**request, "worker": worker}).encode()], fds[2 * index : 2 * index + 2])
        _packets.send(sock, event="spawned", epoch=request["epoch"], pids=pids[: len(workers)])
    except OSError:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        os._exit(1)
    os._exit(0)


def _wait_in_nest(sock):
    _begin_anew()
    try:
        request, fds = _packets.receive(sock)
    except OSError:
        request = None
    if request is None:
        os._exit(0)  # the nest has ended, and with it all that could want a worker
    sock.close()
    return request, dict(request["worker"], index=0), fds


def _become_worker(request, worker, fds):
    """Turns this fork, after _begin_anew(), into what exec would have given: stdio, environment, arguments, thread count."""
    os.dup2(fds[2 * worker["index"]], 1)
    os.dup2(fds[2 * worker["index"] + 1], 2)
    for fd in fds:
        os.close(fd)
    os.environ.update(worker["env"])
    os.environ["LOCKSTEP_WORKER_PID"] = str(os.getpid())
    os.chdir(request["cwd"])
    blas_threads = os.environ.get("OPENBLAS_NUM_THREADS", "")
    _set_threads(worker["threads"], int(blas_threads) if blas_threads.isdecimal() else worker["threads"])
    _boot.prepare_worker()
    moved = request.get("code", {"from": "", "to": ""})
    code = moved["to"]
    if code:
        _version.move(moved["from"], code)
    way = [] if not request["module"] else ["-m", _version.__name__, code] if code else ["-m"]
    exec_command = [sys.executable, "-u", *way, *worker["command"]]
    module = request["module"] and (code or os.getcwd())
    hidden = _hidden_module(module, worker["command"][0])
    if hidden:
        _anew.begin(exec_command, os.environb, os.getcwd(), _PRELOAD, f"the script has a module {hidden} of its own, and the import of torch another")
    late = _anew.came_too_late(request.get("changed", ()), _count_threads_as)
    if late:
        _anew.begin(exec_command, os.environb, os.getcwd(), _PRELOAD, f"the update sets {late}, which is read when Python starts or torch is imported")
    sys.orig_argv = exec_command
    _anew.watch(exec_command, _PRELOAD, _count_threads_as)
    _leave(_exit_status(worker["command"], module))


def _hidden_module(module, script):
    """A module beside the script that this process has imported from elsewhere, but a bare interpreter has not: the script would get that one. None: there
    is none. module: as in _run."""
    path = os.path.realpath(script)
    folder, own = (module, "") if module else (path, "") if os.path.isdir(path) else os.path.split(path)
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    for name in names:
        base, suffix = os.path.splitext(name)
        loaded = sys.modules.get(base) if name != own and base not in _AT_START else None
        place = os.path.join(folder, name if suffix else os.path.join(name, "__init__.py"))
        if loaded is not None and suffix in (".py", "") and os.path.isfile(place):
            origin = getattr(loaded, "__file__", None) or ""
            if not os.path.exists(origin) or not os.path.samefile(origin, place):
                return base
    return None


def _begin_anew():
    """What a fork needs that is the same for all workers: a session and seeds of its own, and a collector that sees all objects."""
    os.setsid()
    gc.unfreeze()
    _fresh_chance()
    for finalizer in weakref.finalize._registry:  # of what the import of torch has made, such as folders: all workers have it
        finalizer.atexit = False


def _exit_status(command, module):
    """Runs the script and says what its process exits with, or by which signal it ends, as a negative number; an exception is printed as the interpreter
    prints it.
    """
    try:
        _run(*command, module=module)
        return 0
    except SystemExit as request:
        return _status_of(request)
    except BaseException as error:
        raised = [error]
    return _print_exception(raised.pop())  # out of its handler: what the hook raises does not come of it; and out of this frame, which it holds


_LONG = 1 << 63  # what the interpreter reads an exit code into


def _status_of(request):
    if request.code is None or isinstance(request.code, int):
        code = request.code or 0
        return (code if -_LONG <= code < _LONG else -1) & 0xFF
    try:
        text = str(request.code)
    except BaseException:  # whatever its __str__ raises
        text = ""
    print(text, file=sys.stderr)
    return 1


def _print_exception(error):
    """By whatever sys.excepthook is by now. Says what the process exits with."""
    status = -signal.SIGINT if type(error) is KeyboardInterrupt else 1  # whoever started us shall see what has ended us
    told = _as_told(error)
    _boot.note_exception(*told[1:])
    sys.last_type, sys.last_value, sys.last_traceback = told  # a hook may look there
    if not hasattr(sys, "excepthook"):
        print("sys.excepthook is missing", file=sys.stderr)
        sys.__excepthook__(*told)
        return status
    try:
        sys.excepthook(*told)
    except SystemExit as request:
        return _status_of(request)
    except BaseException as other:
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(*_as_told(other))
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(*told)
    return status


def _as_told(error):
    """What a sys.excepthook gets, whose traceback begins at the script."""
    error = error.with_traceback(_boot.without_our_frames(error.__traceback__))
    return type(error), error, error.__traceback__


def _leave(status):
    """Ends the worker without tearing the interpreter down: threads of torch that still take the GIL then abort the process now and then,
    and a finished job would count as a crash. What scripts may rely on is done: threads joined, atexit, output flushed, open files written.
    """
    try:
        for step in (threading._shutdown, atexit._run_exitfuncs, _forget_last, _flush_output, _write_open_files):
            try:
                step()
            except BaseException as error:  # what a signal's handler raises, say: the rest is done all the same
                _tell_ignored(step, error)
    finally:
        _end(status)


def _end(status):
    try:
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
    finally:
        os._exit(status if status >= 0 else 128 - status)  # the signal may be blocked


def _forget_last():
    """What the functions that it went through hold ends with it."""
    sys.last_type = sys.last_value = sys.last_traceback = None


def _flush_output():
    for file in (sys.stdout, sys.stderr):
        if file is not None and not getattr(file, "closed", False):
            file.flush()


def _tell_ignored(step, error):
    """As the interpreter tells what it goes on after."""
    try:
        print(f"Exception ignored in: {step!r}", file=sys.stderr)
        sys.__excepthook__(*_as_told(error))
    except Exception:
        pass


_FILE = io.IOBase.__base__  # without what makes io.IOBase slow to ask
_READER_S = 1.0  # for all who read what open files write to


def _write_open_files():
    """What the teardown would write of files that the script has left open, ZipFiles too; temporary ones it would remove. Those on a disk wait for
    nobody. A pipe, a socket or a terminal may be full, and its reader stopped for ever: each is written by a thread of its own, beside which the
    process ends.
    """
    gc.unfreeze()  # what is frozen is not listed
    zipfile, tempfile = sys.modules.get("zipfile"), sys.modules.get("tempfile")
    kinds = (_FILE, zipfile.ZipFile) if zipfile else _FILE
    temporary = tempfile._TemporaryFileWrapper if tempfile else ()
    on_disk, others, removed = [], {}, []
    for file in gc.get_objects():
        if issubclass(type(file), temporary):
            removed.append(file)
        elif issubclass(type(file), kinds):
            try:
                target = file if issubclass(type(file), _FILE) else file.fp
                if not target.closed and target.writable():
                    fd = target.fileno()
                    (on_disk if stat.S_ISREG(os.fstat(fd).st_mode) else others.setdefault(fd, [])).append(file)
            except Exception:
                pass  # it lies in memory, or is half made
    _write(on_disk)
    for file in removed:
        try:
            file.close()
        except Exception:
            pass  # as below
    written = threading.Semaphore(0)
    for files in others.values():
        _thread.start_new_thread(_write_and_say, (files, written))  # a Thread needs sys.excepthook, which the script may have removed
    end = time.monotonic() + _READER_S
    for _ in others:
        written.acquire(timeout=max(0, end - time.monotonic()))


def _write_and_say(files, written):
    try:
        _write(files)
    finally:
        written.release()


def _write(files):
    """The outermost first: text, then what is written in Python, such as GzipFile, whose end only close() writes, then buffers."""
    for file in sorted(files, key=lambda file: (not isinstance(file, io.TextIOBase), _is_of_io(file))):
        try:
            (file.flush if _is_of_io(file) else file.close)()
        except Exception:
            pass  # a full disk, say: the teardown would go on, too


def _is_of_io(file):
    return type(file).__module__ == "_io"


def _fresh_chance():
    import torch

    random.seed()
    torch.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _set_threads(count, blas_count):
    """The libraries read their environment at the import, when it said 1."""
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    for set_threads in _openblas:
        set_threads(blas_count)


def _count_threads_as(name, value):
    """Sets the threads that the libraries would have, had they been imported with this variable, or without it (None). False: it is another, or they can't be
    told."""
    import torch

    if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS") or _untold:
        return False
    set_to = {**os.environ, name: value or ""}
    count = set_to.get("MKL_NUM_THREADS") or set_to.get("OMP_NUM_THREADS")  # as torch reads them
    if value is None and not count:
        return False  # as many as there are processors, in a way of their own
    blas_count = set_to.get("OPENBLAS_NUM_THREADS") or set_to.get("OMP_NUM_THREADS") or count
    count = count or str(torch.get_num_threads())
    if not ((value is None or value.isdecimal()) and count.isdecimal() and blas_count.isdecimal() and int(count) and int(blas_count)):
        return False  # a list, say
    _set_threads(int(count), int(blas_count))
    return True


_openblas, _untold = [], []  # functions of the libraries that are loaded, found once for all workers; those whose function isn't known
_SET_THREADS = ("openblas_set_num_threads", "openblas_set_num_threads64_", "scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads")


def _find_openblas():
    import ctypes

    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split()[-1] for line in maps if "openblas" in line or "libmkl_rt" in line}
    except OSError:
        return
    for path in paths:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        known = [getattr(library, name) for name in _SET_THREADS if hasattr(library, name)]
        (_openblas if known else _untold).extend(known[:1] or [path])


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MADV_HUGEPAGE = -1, -3, 14  # malloc.h, sys/mman.h
_HEAP, _LARGEST_BLOCK = 64 << 20, 32 << 20


def _ready_heap():
    """Lets a worker's first step find memory as a process does that has run for a while: on the heap, and there on large pages.

    A new process maps each large tensor by itself until it has freed some, and touches thousands of small pages for the first time. The
    limits are those to which malloc goes by itself. Nothing is touched here: it takes address space, and where there are no large pages
    nothing changes. Done by who forks the workers, not in the zygote: of that the kernel would make the end of the heap a large page.
    """
    import ctypes

    libc = ctypes.CDLL(None)
    try:
        libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
        libc.sbrk.restype, libc.madvise.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _HEAP)
        begin = libc.sbrk(0)
        for block in [libc.malloc(_LARGEST_BLOCK // 2) for _ in range(2 * _HEAP // _LARGEST_BLOCK)]:
            libc.free(block)
        end, page = libc.sbrk(0), os.sysconf("SC_PAGESIZE")
        begin += -begin % page
        if begin < end:
            libc.madvise(begin, end - begin, _MADV_HUGEPAGE)
    except AttributeError:
        pass  # another libc


def _run(script, *args, module):
    """As `python -u script args...` does; exceptions pass through. module: the script is one, to be found there; False: it is a file, or a folder or
    an archive of Python's with a __main__.py in it. The module __main__ stays until the process ends: threads and atexit may pickle what is in it.
    """
    import pkgutil
    import runpy
    import types

    sys.argv[:] = [script, *args]
    main_module = sys.modules["__main__"] = types.ModuleType("__main__")
    main_module.__builtins__ = __builtins__
    path = os.path.abspath(script)
    if module:
        sys.path.insert(0, module)
        return runpy._run_module_as_main(script)
    if pkgutil.get_importer(path) is not None:
        sys.path.insert(0, os.path.join(os.getcwd(), script))
        return runpy._run_module_as_main("__main__", alter_argv=False)
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    main_module.__file__ = path
    with open(path, "rb") as file:
        text = file.read()
    code = pkgutil.read_code(io.BytesIO(text)) or compile(text, path, "exec")  # it may be compiled already
    exec(code, main_module.__dict__)


if __name__ == "__main__":
    sys.exit(main())
