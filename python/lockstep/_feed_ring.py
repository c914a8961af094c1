"""The ring of batches that `lockstep feed serve` fills, mapped into this process: lockstep/client/feed_lease.h by ctypes.

A batch is lent: whatever NumPy, DLPack or torch makes of it are views, and its slot goes back when the last of them is gone. Who has one is
counted by the library. What is done for each batch is little here, and the rest is made when it is asked for: the job's own work has displaced
most instructions of this module from the caches by the time of the next batch.
"""
import collections
import ctypes
import os
import struct

NOT_YET, GONE, TOLD, ALL_LENT, FORKED, DAMAGED = range(-1, -7, -1)
_ALIGN = 4096
_HEADER = struct.Struct("<8sIIQQII")  # magic, version, slots, slot_stride, item_bytes, capacity, payload_offset
_BATCH = struct.Struct("<5Q2IQ2q")  # ticket, epoch, position, cursor, step, items, skipped, last, began_ns, filled_ns
_COUNTS, _COUNTS_AT = struct.Struct("<2I"), 40  # items, skipped
_WHY_BYTES, _WHY_AT = struct.Struct("<Q"), 112
_BATCH_BYTES, _STATE_AT = 512, 256
_MAX_DIMENSIONS = 8
_MAX_BITS = {"u": 8, "f": 64}  # beyond, torch has none, or none to calculate with
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5}  # NumPy's kinds, as DLPack says them; torch's DLPack had no booleans for long
BFLOAT16, _BFLOAT16_CODE = "bfloat16", 4  # of which NumPy has no kind
IDS_OFFSET = _BATCH_BYTES

_pointer, _u32, _u64, _int = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int
_Head = ctypes.c_char * _BATCH_BYTES
_SIGNATURES = {
    "ls_feed_open": (_pointer, [_int, _int]),
    "ls_feed_memory": (_pointer, [_pointer]),
    "ls_feed_hang_up": (None, [_pointer]),
    "ls_feed_close": (None, [_pointer]),
    "ls_feed_take": (_int, [_pointer, _u64, _int, _pointer]),
    "ls_feed_drop": (None, [_pointer, _u32, _u64]),
    "ls_feed_give_back": (None, [_pointer, _u32, _u64]),
    "ls_feed_tensor": (_pointer, [_pointer, _u32, _u64, _pointer]),
    "ls_feed_drop_tensor": (None, [_pointer]),
    "ls_feed_wait_begin": (None, [_pointer, ctypes.c_char_p, _int, _int]),
    "ls_feed_wait_gone": (None, [_pointer]),
    "ls_feed_wait_joined": (None, [_pointer]),
    "ls_feed_wait_end": (None, [_pointer, _pointer, _int]),
    "ls_feed_functions_ran": (None, [ctypes.c_char_p, _int, _int, ctypes.c_int64]),
}
_library = None


class FeedError(Exception):
    """What is wrong, where, what was expected, what to do."""


def _places():
    here = os.path.dirname(os.path.abspath(__file__))
    yield os.environ.get("LOCKSTEP_CLIENT_LIB")
    yield os.path.join(here, "liblockstep-client.so")
    yield os.path.join(here, "../../../../lib/liblockstep-client.so")  # of PREFIX/share/lockstep/python/lockstep
    binary = os.environ.get("LOCKSTEP_BINARY")
    yield binary and os.path.join(os.path.dirname(binary), "../lib/liblockstep-client.so")
    yield os.path.join(here, "../../build/release/lib/liblockstep-client.so")


class _Library:
    """Functions of _SIGNATURES by name. They keep the interpreter's lock, since none waits but `wait`, which is ls_feed_take without it."""

    def __init__(self, path):
        held, let_go = ctypes.PyDLL(path), ctypes.CDLL(path)
        try:
            for name, signature in _SIGNATURES.items():
                setattr(self, name.removeprefix("ls_feed_"), _function(held, name, *signature))
            self.wait = _function(let_go, "ls_feed_take", *_SIGNATURES["ls_feed_take"])
        except AttributeError:
            raise FeedError(f"{path} is of another version than this package: install both anew") from None
        self.new_capsule = _function(ctypes.pythonapi, "PyCapsule_New", ctypes.py_object, [_pointer, ctypes.c_char_p, _pointer])
        self.is_capsule = _function(ctypes.pythonapi, "PyCapsule_IsValid", _int, [ctypes.py_object, ctypes.c_char_p])


def _function(library, name, result, arguments):
    function = library[name]  # of our own: another package may have given its attribute other types
    function.restype, function.argtypes = result, arguments
    return function


def library():
    global _library
    if _library is None:
        found = next((path for path in _places() if path and os.path.exists(path)), None)
        if found is None:
            raise FeedError("liblockstep-client.so is not beside this package: name it in LOCKSTEP_CLIENT_LIB")
        _library = _Library(found)
    return _library


class _View(ctypes.Structure):  # struct ls_feed_view
    _fields_ = [("offset", _u64), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("reserved", ctypes.c_uint16), ("dimensions", ctypes.c_int32),
                ("shape", ctypes.c_int64 * _MAX_DIMENSIONS), ("strides", ctypes.c_int64 * _MAX_DIMENSIONS)]


def view_of(offset, dtype, shape, order):
    """What Slot.tensor() wants to know: rows of `shape` one behind the other from `offset` (bytes) on, the dimensions in `order` (0: that of
    the rows). `dtype` as NumPy writes it, or BFLOAT16. None where DLPack, or torch, can't say it."""
    if dtype == BFLOAT16:
        code, bits = _BFLOAT16_CODE, 16
    else:
        code, bits = _CODES.get(dtype[1]), 8 * int(dtype[2:])
    if code is None or len(shape) >= _MAX_DIMENSIONS or bits > _MAX_BITS.get(dtype[1], 128):
        return None
    strides = [1]
    for size in reversed(shape):
        strides.insert(0, strides[0] * size)
    view = _View(offset, code, bits, 0, len(order))
    for i, axis in enumerate(order):
        view.shape[i], view.strides[i] = (0, *shape)[axis], strides[axis]
    return view


class Ring:
    """The mapping; lives as long as a view of it does, whatever becomes of the service. `socket`: where the service hears of free slots."""

    def __init__(self, fd, socket):
        self.library = library()
        self.lender = self.library.open(fd, socket)
        if not self.lender:
            raise FeedError("the service's ring can't be mapped: there is no memory, or this package and `lockstep` differ in version")
        self.address = self.library.memory(self.lender)
        header = _HEADER.unpack(ctypes.string_at(self.address, _HEADER.size))
        _, _, self.slots, self.stride, self.item_bytes, self.capacity, self.payload_offset = header
        self.window = type("Window", (ctypes.c_char * self.stride,), {})  # one that takes attributes
        self.labels_offset = _BATCH_BYTES + 8 * self.capacity
        self.pid = os.getpid()

    def take(self, ticket, wait_ms=0):
        """The Slot with this batch; or NOT_YET, GONE, TOLD, ALL_LENT, FORKED, DAMAGED."""
        head = _Head()
        library = self.library
        index = (library.wait if wait_ms else library.take)(self.lender, ticket, wait_ms, head)
        return Slot(self, index, ticket, head) if index >= 0 else index

    def hang_up(self):
        self.library.hang_up(self.lender)

    def __del__(self):
        if getattr(self, "lender", None):
            self.library.close(self.lender)


Head = collections.namedtuple("Head", "ticket epoch position cursor step items skipped last began_ns filled_ns")


def place_behind(head):
    """(state, epoch): where the job goes on behind the batch with this head."""
    fields = Head._make(_BATCH.unpack_from(head))
    return head[_STATE_AT:].partition(b"\0")[0], fields.epoch + bool(fields.last)


class Slot:
    """One batch in the ring. It goes back when nothing refers to it; what memory() gives does, and so do arrays of that and tensors."""

    def __init__(self, ring, index, ticket, head):
        self._ring, self.index, self._ticket, self.head = ring, index, ticket, head

    def __del__(self):
        self._ring.library.drop(self._ring.lender, self.index, self._ticket)

    def release(self):
        self._ring.library.give_back(self._ring.lender, self.index, self._ticket)

    def fields(self):
        return Head._make(_BATCH.unpack_from(self.head))

    def has_lost_all(self):
        """Its items could not be prepared; none of them."""
        items, skipped = _COUNTS.unpack_from(self.head, _COUNTS_AT)
        return items == 0 and skipped > 0

    def why(self):
        """What the first of the lost items is, and what is wrong with it."""
        size, = _WHY_BYTES.unpack_from(self.head, _WHY_AT)
        at = self._ring.address + _ALIGN + self.index * self._ring.stride + self._ring.payload_offset
        return ctypes.string_at(at, min(size, _ALIGN)).decode("utf-8", "replace")

    def memory(self):
        memory = self._ring.window.from_address(self._ring.address + _ALIGN + self.index * self._ring.stride)
        memory.slot = self
        return memory

    def tensor(self, view, from_dlpack):
        """What torch's from_dlpack makes of a view of view_of()."""
        library = self._ring.library
        managed = library.tensor(self._ring.lender, self.index, self._ticket, ctypes.byref(view))
        if not managed:
            raise MemoryError
        capsule = library.new_capsule(managed, b"dltensor", None)
        try:
            return from_dlpack(capsule)
        except BaseException:
            if library.is_capsule(capsule, b"dltensor"):  # it was not taken over
                library.drop_tensor(managed)
            raise
