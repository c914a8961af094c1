"""What a rank waits for batches is told to whoever explains the job: lockstep/client/feed_wait.h by ctypes."""
import ctypes

from ._feed_ring import library

_BYTES = 56


class Wait:
    """For one batch, from now on."""

    def __init__(self, request):
        self._memory = ctypes.create_string_buffer(_BYTES)
        self._call("begin", request["dataset"].encode(), request["rank"], request["world"])

    def gone(self):
        self._call("gone")

    def joined(self):
        self._call("joined")

    def end(self, ring=None, slot=-1):
        """Without a slot: in vain."""
        if self._memory is not None:
            self._call("end", ring and ring.address, slot)
            self._memory = None

    def _call(self, name, *arguments):
        getattr(library(), f"wait_{name}")(ctypes.addressof(self._memory), *arguments)


def functions_ran(request, seconds):
    """The script's own functions, on a batch, for so long until now."""
    library().functions_ran(request["dataset"].encode(), request["rank"], request["world"], int(1e9 * seconds))
