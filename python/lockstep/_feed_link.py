"""A rank's connection to `lockstep feed serve`: JSON packets over a SEQPACKET unix socket (docs/formats/feed.md)."""
import contextlib
import errno
import json
import os
import pwd
import socket
import stat
import struct
import time

from . import _feed_ring
from ._feed_ring import FeedError

_VERSION = 1
_MAX_PACKET = 1 << 20
_RETRY_S = 0.05


class Elsewhere(ConnectionError):
    """A relay is here, and the service that it passes batches on from is not there."""


class Deadline:
    def __init__(self, seconds):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self):
        return max(0.0, self._end - time.monotonic())

    def over(self):
        return self.left() == 0


class Link:
    """Joined: `ring`, the `place` (state, epoch) where it begins, `items` of the job's set, and `shape` and `dtype` of an item."""

    def __init__(self, connection, ring, answer):
        self._connection, self.ring = connection, ring
        self.place, self.items = (answer["state"].encode(), answer["epoch"]), answer["items"]
        self.shape, dtype = tuple(answer["shape"]), answer["dtype"]
        self.bfloat16 = dtype == _feed_ring.BFLOAT16
        self.dtype = "<u2" if self.bfloat16 else dtype  # NumPy's
        order = (0, 3, 1, 2) if len(self.shape) == 3 else range(1 + len(self.shape))  # images: (N, 3, H, W), in memory as they are
        self.images_view = _feed_ring.view_of(ring.payload_offset, dtype, self.shape, order)
        self.labels_view = _feed_ring.view_of(ring.labels_offset, "<i8", (), (0,))

    def complaint(self):
        """The sentence that the service has sent."""
        return json.loads(self._connection.recv(_MAX_PACKET)).get("error", "the service sent what this package does not know")

    def __del__(self):
        self.close()

    def close(self):
        """For the service too, where a child of this process, such as a worker of DataLoader, has the connection open; in such a child for itself."""
        self.ring.hang_up()
        if os.getpid() == self.ring.pid:
            with contextlib.suppress(OSError):  # closed already, or by the service
                self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def _packet_of(request):
    try:
        return _text_of(request)
    except (TypeError, ValueError) as error:
        named = ", ".join(f"{key}={value!r}" for key, value in request.items() if not _is_plain(value))
        raise FeedError(f"the service takes numbers, names (in UTF-8) and lists of them, found {named}") from error


def _text_of(value):
    return json.dumps(value, allow_nan=False, default=_of_numpy, ensure_ascii=False).encode()


def _of_numpy(value):
    """A number or an array of NumPy or torch, as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r} is no number, name or list")


def _is_plain(value):
    try:
        _text_of(value)
    except (TypeError, ValueError):
        return False
    return True


def socket_beside(dataset):
    """Of the service that `lockstep run --feed` has started for this data set, and starts anew if it dies; None: of none."""
    folder = os.environ.get("LOCKSTEP_FEED_DIR", "")
    return os.path.join(folder, f"{dataset}.sock") if folder and os.path.exists(os.path.join(folder, f"{dataset}.log")) else None


def default_socket():
    named, runtime = os.environ.get("LOCKSTEP_FEED_SOCKET"), os.environ.get("XDG_RUNTIME_DIR")
    if named:
        return named
    kept = runtime and os.access(runtime, os.W_OK) and not _goes_at_logout(runtime)
    return os.path.join(runtime, "lockstep/feed.sock") if kept else f"/tmp/lockstep-{os.geteuid()}/feed.sock"


def _goes_at_logout(runtime):
    """As GoesAtLogout in lockstep/node/run_dir.h."""
    user = os.geteuid()
    if runtime != f"/run/user/{user}":
        return False
    try:
        return not os.path.exists(f"/var/lib/systemd/linger/{pwd.getpwuid(user).pw_name}")
    except KeyError:
        return True


def join(path, request, where, deadline, expected):
    """A Link. FeedError if the service refuses, if there has been none unless one is `expected`, if it is gone until the deadline, or if what is
    wrong won't pass. A service that was killed has left its socket, one that ended has not."""
    while True:
        try:
            return _join(path, request, where, deadline)
        except FileNotFoundError as error:
            if not expected:
                raise FeedError(f"{path}: no data service answers ({error.strerror}); start one: lockstep feed serve --data DIR") from None
            why = ""
        except (ConnectionError, BlockingIOError) as error:  # the last: more wait to be let in than fit
            if _is_no_socket(path):
                raise FeedError(f"{path}: there is a file of that name which is no socket; expected that of a data service") from None
            why = f" ({error})" if isinstance(error, Elsewhere) else ""
        except OSError as error:
            raise FeedError(f"{path}: the data service can't be reached: {error.strerror or error}") from None
        if deadline.over():
            raise FeedError(f"{path}: the data service has been gone for {deadline.seconds:g} s{why}")
        time.sleep(_RETRY_S)


def _is_no_socket(path):
    try:
        return not stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:  # it is gone by now
        return False


def _join(path, request, where, deadline):
    """Waits for the answer on one connection: who came anew would be last again, and what was asked before be worked off all the same."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_PACKET)
        connection.settimeout(deadline.left() + _RETRY_S)
        connection.connect(path)
        fds = []
        where, ids = _set_of(where)
        packet = _packet_of({"op": "join", "version": _VERSION, "where": where, **request})
        try:
            if ids is not None:
                fds.append(_in_memory(ids))
            _send(connection, packet, fds)
        finally:
            for fd in fds:
                os.close(fd)
        return _answered(connection)
    except socket.timeout:
        with connection:
            raise FeedError(f"{path}: the data service, {_process_of(connection)}, is there and has not answered for {deadline.seconds:g} s: it is busy "
                            "or stopped; `lockstep feed status` says whether it answers now") from None
    except BaseException:
        connection.close()
        raise


def _process_of(connection):
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return f"process {pid}"


def _send(connection, packet, fds):
    try:
        socket.send_fds(connection, [packet], fds)
    except OSError as error:
        if error.errno != errno.EMSGSIZE:
            raise
        raise FeedError(f"the request has {len(packet)} bytes, more than this system lets through at once (net.core.wmem_max): give `where` fewer "
                        "labels, or the ids of the items, of which there may be any number") from None


def _answered(connection):
    text, fds, _, _ = socket.recv_fds(connection, _MAX_PACKET, 1)
    try:
        if not text:
            raise ConnectionResetError("the service closed the connection")
        answer = json.loads(text)
        if "gone" in answer:
            raise Elsewhere(answer["gone"])
        if "error" in answer:
            raise FeedError(answer["error"])
        return Link(connection, _feed_ring.Ring(fds[0], connection.fileno()), answer)
    finally:
        for fd in fds:
            os.close(fd)


def _set_of(where):
    """(what the packet says, bytes beside it): a list of any length goes by shared memory."""
    if where is None or isinstance(where, dict):
        return where, None
    if isinstance(where, range) and where.step == 1:
        return {"items": [where.start, where.stop]}, None
    import numpy

    listed, of_mask = numpy.asarray(where), {}
    if listed.ndim == 1 and listed.size == 0:
        listed = listed.astype("<u8")  # of an empty list NumPy makes floats
    if listed.ndim != 1 or listed.dtype.kind not in "biu":
        raise FeedError(f"where: expected a range, a dict, a boolean mask or ids, found {type(where).__name__} of {listed.dtype}")
    if listed.dtype == bool:
        listed, of_mask = numpy.flatnonzero(listed), {"mask": len(listed)}
    elif listed.size and listed.min() < 0:
        raise FeedError(f"where: item {listed.min()}: expected ids from 0 on")
    return {"listed": len(listed), **of_mask}, listed.astype("<u8").tobytes()


def _in_memory(content):
    fd = os.memfd_create("lockstep-feed-set", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    return fd
