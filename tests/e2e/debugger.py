"""Holds a process as a debugger does: PTRACE_SEIZE and PTRACE_INTERRUPT by ctypes."""
import ctypes
import os
import signal

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request, pid):
    if _libc.ptrace(request, pid, None, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


class Debugger:
    """with Debugger(pid): the process's main thread stands still. The same thread must enter and leave."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        _ptrace(SEIZE, self.pid)
        _ptrace(INTERRUPT, self.pid)
        self._await_stop()
        return self

    def _await_stop(self):
        _, status = os.waitpid(self.pid, 0)
        if not os.WIFSTOPPED(status):
            raise ProcessLookupError(f"process {self.pid} ended under the debugger, wait status {status}")

    def await_end(self):
        """Until here a process that was killed stays with us: nobody else can wait for it, as if it hung in the kernel."""
        os.waitpid(self.pid, 0)
        self.pid = 0

    def __exit__(self, *_):
        if self.pid and os.path.exists(f"/proc/{self.pid}"):
            _ptrace(DETACH, self.pid)


def why_not():
    """Why this process may not debug another one; None when it may."""
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        with Debugger(child):
            return None
    except OSError as error:
        return f"no right to debug: {error}"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
