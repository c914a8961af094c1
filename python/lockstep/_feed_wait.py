"""What a rank waits for batches is told to whoever explains the job: lockstep/client/feed_wait.h by ctypes."""
import ctypes

from ._feed_ring import library

_BYTES = 64
_pointer, _int = ctypes.c_void_p, ctypes.c_int
_ARGUMENTS = {"begin": [_pointer, ctypes.c_char_p, _int, _int], "gone": [_pointer], "joined": [_pointer], "end": [_pointer, _pointer, _int]}


class Wait:
    """For one batch. It begins with begin(), whose further calls change nothing; one that never began is none."""

    def __init__(self, request):
        self._request, self._memory = request, None

    def begin(self):
        if self._memory is None:
            self._memory = ctypes.create_string_buffer(_BYTES)
            self._call("begin", self._request["dataset"].encode(), self._request["rank"], self._request["world"])

    def gone(self):
        self.begin()
        self._call("gone")

    def joined(self):
        if self._memory is not None:
            self._call("joined")

    def end(self, ring=None, slot=-1):
        """Without a slot: in vain."""
        if self._memory is not None:
            self._call("end", ring and ring.address, slot)
            self._memory = None

    def _call(self, name, *arguments):
        function = getattr(library(), f"ls_feed_wait_{name}")
        function.restype, function.argtypes = None, _ARGUMENTS[name]
        function(ctypes.addressof(self._memory), *arguments)
