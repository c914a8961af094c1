"""The ring of batches that `lockstep feed serve` fills, mapped into this process: lockstep/client/feed_ring.h by ctypes.

A batch is lent: whatever NumPy, DLPack or torch makes of it are views, and its slot goes back when the last of them is gone.
"""
import ctypes
import mmap
import os
import struct

NOT_YET, GONE, TOLD = -1, -2, -3
_MAGIC, _ALIGN = b"LSFEED01", 4096
_HEADER = struct.Struct("<8sIIQQII")  # magic, version, slots, slot_stride, item_bytes, capacity, payload_offset
_BATCH = struct.Struct("<5Q2IQ2q")  # ticket, epoch, position, cursor, step, items, skipped, last, began_ns, filled_ns
_BATCH_BYTES, _STATE_AT, _VERSION = 512, 256, 1
IDS_OFFSET = _BATCH_BYTES

_pointer, _u64, _int = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
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


def library():
    global _library
    if _library is None:
        found = next((path for path in _places() if path and os.path.exists(path)), None)
        if found is None:
            raise FeedError("liblockstep-client.so is not beside this package: name it in LOCKSTEP_CLIENT_LIB")
        loaded = ctypes.CDLL(found)
        try:
            loaded.ls_feed_await.restype, loaded.ls_feed_await.argtypes = _int, [_pointer, _u64, _int, _int]
            loaded.ls_feed_release.restype, loaded.ls_feed_release.argtypes = None, [_pointer, ctypes.c_uint32, _int]
        except AttributeError:
            raise FeedError(f"{found} is of another version than this package: install both anew") from None
        _library = loaded
    return _library


class Ring:
    """The mapping; lives as long as a view of it does, whatever becomes of the service."""

    def __init__(self, fd):
        self._library = library()
        with open(fd, "rb", closefd=False) as file:
            header = file.read(_HEADER.size)
        fields = _HEADER.unpack(header) if len(header) == _HEADER.size else [b""]
        if fields[0] != _MAGIC or fields[1] != _VERSION:
            raise FeedError("the service's ring has another format: this package and `lockstep` differ in version")
        _, _, self.slots, self.stride, self.item_bytes, self.capacity, self.payload_offset = fields
        self.memory = mmap.mmap(fd, _ALIGN + self.slots * self.stride, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._anchor = (ctypes.c_char * len(self.memory)).from_buffer(self.memory)
        self.address = ctypes.addressof(self._anchor)
        self.window = type("Window", (ctypes.c_char * self.stride,), {})  # one that takes attributes
        self.labels_offset = _BATCH_BYTES + 8 * self.capacity
        self.pid = os.getpid()
        self.socket = -1  # where a release is told; -1: nobody is there
        self.lent = set()  # indexes of slots

    def wait(self, ticket, timeout_ms):
        """The index of the slot with this batch; or NOT_YET, GONE, TOLD."""
        return self._library.ls_feed_await(self.address, ticket, self.socket, timeout_ms)

    def take(self, index, ticket):
        self.lent.add(index)
        return Slot(self, index, ticket)

    def give_back(self, index):
        if os.getpid() == self.pid:  # a fork has views of its own, and no say
            self.lent.discard(index)
            self._library.ls_feed_release(self.address, index, self.socket)


class Slot:
    """One batch in the ring. It goes back when nothing refers to it; what memory() gives does, and so do arrays of that."""

    def __init__(self, ring, index, ticket):
        self._ring, self._index, self._lent = ring, index, True
        self._begin = _ALIGN + index * ring.stride
        (found, self.epoch, self.position, self.cursor, self.step, self.items, self.skipped, self.last, self.began_ns,
         self.filled_ns) = _BATCH.unpack_from(ring.memory, self._begin)
        if found != ticket:
            raise FeedError(f"the slot of batch {ticket} holds batch {found}: the service's ring is damaged; restart the service")
        self.state = ring.memory[self._begin + _STATE_AT : self._begin + _BATCH_BYTES]  # ends with its first zero

    def __del__(self):
        self.release()

    def release(self):
        if self._lent:
            self._lent = False
            self._ring.give_back(self._index)

    def memory(self):
        memory = self._ring.window.from_buffer(self._ring.memory, self._begin)
        memory.slot = self
        return memory
