"""@lockstep.restartable: when another rank fails, a surviving one leaves its training function and enters it again in the same process.

    @lockstep.restartable
    def train():
        torch.distributed.init_process_group("gloo")
        ...

    train()

What happens at a restart: the starter says so on standby.sock; a thread of ours shuts down the TCP connections that were opened since
the function was entered (so a collective that waits for a dead peer ends at once) and signals the main thread, which leaves the function
by an exception, drops its objects, destroys the process groups and says that it waits. Told to enter, it takes the environment and the
output of the new epoch and calls the function again. A rank that does not come to wait soon is killed and started anew, as any other.
"""
import functools
import gc
import os
import queue
import signal
import socket
import stat
import sys
import threading
import time
import traceback

from . import _boot, _client, _packets

SIGNAL = signal.SIGRTMIN + 9
# Connections are not ended while ranks still write to each other: gloo forgets a send that was about to be written to one, and its thread then
# waits for ever. Without the failed rank, all is quiet soon.
QUIET_S = 0.05
CALM_S, CALM_LIMIT_S = 0.005, 0.5
PATIENCE_S = 5.0  # a collective that lost a peer: for the word that this is a restart
LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused", "Timed out", "timed out", "Socket Timeout",
             "Connect timeout", "remote process exited")


def restartable(function):
    """The decorated function, called in the main thread, may be left at any line and called again with the same arguments, when a rank failed
    elsewhere. It makes its process groups itself and reads nothing that an earlier call has left half done. Without Lockstep: the function.
    """
    @functools.wraps(function)
    def run(*args, **kwargs):
        standby = _offer() if "LOCKSTEP_RUN" in os.environ else None
        return standby.run(lambda: function(*args, **kwargs)) if standby else function(*args, **kwargs)
    return run


class _EpochOver(BaseException):
    """Leaves the training function. No Exception: a loop that survives those must not survive this one."""


def _offer():
    """A _Standby, or None and a line that says why this function is not restarted in place."""
    try:
        import torch.distributed as dist

        if dist.is_initialized():
            raise RuntimeError("it was entered with a process group that it has not made")
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("it was not called in the main thread")
        return _Standby(os.path.join(os.environ["LOCKSTEP_RUN"], "standby.sock"))
    except (ImportError, OSError, RuntimeError) as error:
        _client.warn(f"a function is not restartable in place: {error}")
        return None


class _Standby:
    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(path)
        self._over = threading.Event()
        self._cut_off = threading.Event()  # soon after it: the connections are shut down
        self._entries = queue.SimpleQueue()
        self._switches = _switches()
        self._inside = False
        self._before, self._children = set(), set()
        signal.signal(SIGNAL, self._leave)
        threading.Thread(target=self._listen, name="lockstep-standby", daemon=True).start()

    def run(self, call):
        while True:
            try:
                result = self._call(call)
                if not self._over.is_set():
                    self._withdraw()
                    return result
                self._clean_up(None)  # a bare `except:` took _EpochOver for something else
            except _EpochOver as over:
                self._clean_up(over)
            except Exception as error:
                if not self._over.wait(PATIENCE_S if _lost_peer(error) else 0):
                    self._withdraw()
                    raise
                self._clean_up(error)
            self._wait_and_enter()

    def _call(self, call):
        self._before, self._children = _connections(), _children()
        try:
            self._inside = True
            if self._over.is_set():  # between two signals
                raise _EpochOver
            return call()
        finally:
            self._inside = False

    # ---- the starter's words, in a thread of their own ----

    def _listen(self):
        while True:
            try:
                request, fds = _packets.receive(self._socket)
            except (OSError, ValueError):
                request, fds = None, []
            if request is None:
                return self._entries.put(None)
            if request["op"] == "enter":
                self._over.clear()  # here, so that the next "leave" is not lost
                self._cut_off.clear()
                self._entries.put((request["env"], fds))
            else:
                time.sleep(QUIET_S)
                self._over.set()
                for fd, _ in _connections() - self._before:
                    _shut_down(fd)
                self._cut_off.set()
                signal.pthread_kill(threading.main_thread().ident, SIGNAL)

    def _leave(self, number, frame):
        if self._inside and self._over.is_set():
            self._inside = False
            raise _EpochOver

    # ---- between two calls ----

    def _clean_up(self, error):
        self._inside = False
        _client.leave()  # first: a copy may still read the tensors
        self._cut_off.wait(PATIENCE_S)
        _await_calm()
        _drop_frames(error)
        _end(_children() - self._children)
        import torch.distributed as dist

        try:
            if dist.is_initialized():
                dist.destroy_process_group()
        except Exception as failure:  # whatever a broken backend says; the next epoch has a store of its own
            _client.warn(f"a broken process group could not be destroyed: {failure}")
        gc.collect()

    def _wait_and_enter(self):
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            _packets.send(self._socket, op="waits")
        except OSError:
            os._exit(1)  # the starter is gone
        entry = self._entries.get()
        if entry is None:
            os._exit(1)  # the starter is gone
        environment, fds = entry
        for number, fd in enumerate(fds, start=1):
            os.dup2(fd, number)
            os.close(fd)
        os.environ.update(environment)
        for put, value in self._switches:
            put(value)
        _boot.prepare_worker()

    def _withdraw(self):
        self._socket.shutdown(socket.SHUT_RDWR)  # the thread closes with it


def _switches():
    """[(setter, value now)] of what torch keeps per thread: an exception may strike inside the __exit__ that would have put it back."""
    import torch

    pairs = [(torch.set_grad_enabled, torch.is_grad_enabled()), (torch.set_default_dtype, torch.get_default_dtype())]
    for kind in ("autocast_enabled", "autocast_cpu_enabled"):
        if hasattr(torch, "set_" + kind) and hasattr(torch, "is_" + kind):
            pairs.append((getattr(torch, "set_" + kind), getattr(torch, "is_" + kind)()))
    return pairs


def _await_calm():
    """Until the collectives under way have ended, by the end of their connections. A process group is destroyed with the interpreter held, and
    waits for its threads: one that lets go of a tensor of which nobody else knows would wait for the interpreter, and both for ever."""
    ours = _our_threads()
    calm, end = 0, time.monotonic() + CALM_LIMIT_S
    while calm < 3 and time.monotonic() < end:
        calm = 0 if any(_runs(task) for task in os.listdir("/proc/self/task") if int(task) not in ours) else calm + 1
        time.sleep(CALM_S)


def _our_threads():
    """Those of the interpreter. After a fork, the main thread is enumerated under the number of its parent."""
    return {thread.native_id for thread in threading.enumerate()} | {threading.get_native_id()}


def _runs(task):
    try:
        with open(f"/proc/self/task/{task}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"R", b"D")
    except OSError:
        return False  # it has ended


def _lost_peer(error):
    return any(sign in str(error) for sign in LOST_PEER)


def _children():
    """The processes that this one has started by multiprocessing."""
    return set(sys.modules["multiprocessing"].active_children()) if "multiprocessing" in sys.modules else set()


def _end(children):
    """Their ends are not told: torch, say, raises where a DataLoader's worker was killed."""
    if not children:
        return
    handler = signal.getsignal(signal.SIGCHLD)
    if callable(handler):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in children:
        child.kill()
    for child in children:
        child.join(PATIENCE_S)
    if "torch.utils.data" in sys.modules:
        _begin_loaders_anew(sys.modules["torch.utils.data"].DataLoader, children)
    if callable(handler):
        signal.signal(signal.SIGCHLD, handler)


def _begin_loaders_anew(kind, ended):
    """A DataLoader with persistent_workers that is older than the call would wait for those that it has started in it."""
    for loader in gc.get_objects():
        if issubclass(type(loader), kind) and not ended.isdisjoint(getattr(getattr(loader, "_iterator", None), "_workers", ())):
            loader._iterator = None


def _drop_frames(error):
    """The frames of a failed function hold its process group, and would keep the other ranks waiting for it."""
    seen, errors = set(), [error]
    while errors:
        one = errors.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        errors += [one.__context__, one.__cause__]
        one.__traceback__ = None


def _connections():
    """{(descriptor, inode)} of the TCP connections of this process. None of those who listen: gloo of torch 2 throws in a thread of its own
    where it can't accept."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode) and _is_connection(int(name)):
                found.add((int(name), status.st_ino))
        except OSError:
            continue  # closed meanwhile
    return found


def _is_connection(fd):
    with socket.socket(fileno=os.dup(fd)) as one:
        is_tcp = one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6)
        return is_tcp and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def _shut_down(fd):
    try:
        with socket.socket(fileno=os.dup(fd)) as one:
            one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # closed meanwhile
