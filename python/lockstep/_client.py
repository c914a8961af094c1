"""liblockstep-client.so by ctypes: client.h, call by call. Found by LOCKSTEP_CLIENT_LIB, else next to this package.

ctypes releases the interpreter lock during a call, so waiting for a copy doesn't hold up other Python threads.
"""
import ctypes
import math
import os
import sys

OK, NOT_JOINED, SKIPPED, REFUSED, FRESH, CORRUPT, TIMEOUT, STALE, ON_DISK = range(9)
REPLICA, CUT = 1, 2  # what a script may say of its state in other worlds
CPU, CUDA = 0, 1
OTHER, DATA, FORWARD, BACKWARD, OPTIMIZER = range(5)  # parts of a step
RESTORE_TIMEOUT_S = 300.0  # for the agent to name the restore point; it does so before it starts the workers

_pointer, _u64, _i64, _int = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int
_SIGNATURES = {
    "ls_join": (_pointer, []),
    "ls_leave": (None, [_pointer]),
    "ls_last_error": (ctypes.c_char_p, []),
    "ls_rank": (_int, [_pointer]),
    "ls_loop_begin": (None, [_pointer, _i64]),
    "ls_step": (None, [_pointer, _i64, ctypes.c_double]),
    "ls_say_other_worlds": (None, [_pointer, _int]),
    "ls_mark": (None, [_pointer, _int]),
    "ls_buffers": (_int, [_pointer, _u64]),
    "ls_slot_capacity": (_u64, [_pointer]),
    "ls_save_begin": (_int, [_pointer, _i64, ctypes.c_char_p, _u64]),
    "ls_save_add_now": (_int, [_pointer, _int, _pointer, _u64]),
    "ls_save_add_many": (_int, [_pointer, _int, _pointer, _pointer, ctypes.c_size_t]),
    "ls_save_stream": (_int, [_pointer, _pointer]),
    "ls_save_submit": (_int, [_pointer]),
    "ls_save_here": (_int, [_pointer]),
    "ls_save_wait": (_int, [_pointer]),
    "ls_save_spoil": (None, [_pointer]),
    "ls_restore_point": (_int, [_pointer, ctypes.c_double] + [_pointer] * 5),
    "ls_restore_on_disk": (None, [_pointer] * 3),
}


def _told(loss):
    """NaN means that none was told."""
    return math.inf if math.isnan(loss) else loss


class Client:
    """One joined process. Results are those of client.h, as numbers; `error()` has the sentence for the last bad one."""

    def __init__(self, library, handle):
        self._library = library
        self._handle = handle
        self.rank = library.ls_rank(handle)
        self.stepped_by = None  # who stepped last, by a token of its own: a Checkpoint that were held here would outlive its function
        self.counted = -1  # the newest step that one has told or restored
        self._newest = -1  # step that was told; None: that it fell was said

    def error(self):
        return self._library.ls_last_error().decode("utf-8", "replace")

    def step(self, i, loss=None):
        if self._newest is not None:
            if i < self._newest and self.rank == 0:
                warn(f"step {i} comes after step {self._newest}: count steps over all epochs of the data, or what a restart costs can't be told")
            self._newest = i if i >= self._newest else None
        self._library.ls_step(self._handle, i, math.nan if loss is None else _told(float(loss)))

    def say_other_worlds(self, what):
        self._library.ls_say_other_worlds(self._handle, what)

    def mark(self, part):
        self._library.ls_mark(self._handle, part)

    def loop_begin(self, last_step):
        self._library.ls_loop_begin(self._handle, last_step)

    def buffers(self, size):
        return self._library.ls_buffers(self._handle, size)

    def capacity(self):
        return self._library.ls_slot_capacity(self._handle)

    def save_begin(self, step, meta):
        return self._library.ls_save_begin(self._handle, step, meta, len(meta))

    def save_add_now(self, device, pointer, size):
        return self._library.ls_save_add_now(self._handle, device, pointer, size)

    def save_add_many(self, device, pointers, sizes):
        """`pointers`, `sizes`: ctypes arrays of c_void_p and c_uint64 of one length."""
        return self._library.ls_save_add_many(self._handle, device, pointers, sizes, len(pointers))

    def save_stream(self, stream):
        return self._library.ls_save_stream(self._handle, stream)

    def save_submit(self):
        return self._library.ls_save_submit(self._handle)

    def save_here(self):
        return self._library.ls_save_here(self._handle)

    def save_wait(self):
        return self._library.ls_save_wait(self._handle)

    def save_spoil(self):
        self._library.ls_save_spoil(self._handle)

    def restore_point(self):
        """(result, step, meta, tensors): the last two are buffers in shared memory, valid until the next save_begin()."""
        step, meta, tensors = _i64(-1), _pointer(), _pointer()
        meta_size, tensors_size = _u64(0), _u64(0)
        found = [ctypes.byref(value) for value in (step, meta, meta_size, tensors, tensors_size)]
        result = self._library.ls_restore_point(self._handle, RESTORE_TIMEOUT_S, *found)
        if result != OK:
            return result, step.value, None, None
        return result, step.value, _buffer(meta, meta_size), _buffer(tensors, tensors_size)

    def restore_on_disk(self):
        """After ON_DISK: (epoch of the checkpoint, how many ranks wrote it)."""
        epoch, ranks = _u64(0), _u64(0)
        self._library.ls_restore_on_disk(self._handle, ctypes.byref(epoch), ctypes.byref(ranks))
        return epoch.value, ranks.value

    @property
    def has_left(self):
        return self._handle is None

    def leave(self):
        """Waits for a copy under way. From then on every call answers that nobody has joined."""
        self._library.ls_leave(self._handle)
        self._handle = None


def _buffer(pointer, size):
    return (ctypes.c_char * size.value).from_address(pointer.value)


_joined = {}  # pid: Client or None; a forked child joins for itself


def join():
    """The Client of this process, or None: not under Lockstep, or it failed and one line on stderr has said why."""
    pid = os.getpid()
    if pid not in _joined:
        _joined[pid] = _join() if "LOCKSTEP_RUN" in os.environ else None
    return _joined[pid]


def leave():
    """This process, if it has joined, may join again."""
    client = _joined.pop(os.getpid(), None)
    if client is not None:
        client.leave()


def _join():
    path = os.environ.get("LOCKSTEP_CLIENT_LIB") or os.path.join(os.path.dirname(__file__), "liblockstep-client.so")
    try:
        library = ctypes.CDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        return _go_on_without(f"{error} (LOCKSTEP_CLIENT_LIB names the library)")
    handle = library.ls_join()
    return Client(library, handle) if handle else _go_on_without(library.ls_last_error().decode("utf-8", "replace"))


def _go_on_without(reason):
    warn(f"this process goes on without Lockstep: {reason}")


def warn(line):
    print(f"lockstep: {line}", file=sys.stderr, flush=True)


def warn_once(line):
    """What is so on all ranks is said by one of them."""
    client = join()
    if client is None or client.rank == 0:
        warn(line)
