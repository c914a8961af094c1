"""A rank's connection to `lockstep feed serve`: JSON packets over a SEQPACKET unix socket (docs/formats/feed.md)."""
import contextlib
import json
import os
import pwd
import socket
import time

from . import _feed_ring
from ._feed_ring import FeedError

_VERSION = 1
_MAX_PACKET = 1 << 20
_RETRY_S = 0.05
_ANSWER_S = 30.0  # a service that is busy opening a data set


class Elsewhere(ConnectionError):
    """A relay is here, and the service that it passes batches on from is not there."""


class Deadline:
    def __init__(self, seconds):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def over(self):
        return time.monotonic() >= self._end


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
        return json.dumps(request, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        named = ", ".join(f"{key}={value!r}" for key, value in request.items() if not _is_plain(value))
        raise FeedError(f"the service takes numbers, names and lists of them, found {named}") from error


def _is_plain(value):
    try:
        json.dumps(value, allow_nan=False)
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
    """A Link. FeedError if the service refuses, if there has been none unless one is `expected`, or if it is gone until the deadline. A service
    that was killed has left its socket, one that ended has not."""
    while True:
        try:
            return _join(path, request, where)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not expected:
                raise FeedError(f"{path}: no data service answers ({error.strerror}); start one: lockstep feed serve --data DIR") from None
            if deadline.over():
                why = f" ({error})" if isinstance(error, Elsewhere) else ""
                raise FeedError(f"{path}: the data service has been gone for {deadline.seconds:g} s{why}") from None
        time.sleep(_RETRY_S)


def _join(path, request, where):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(_ANSWER_S)
        connection.connect(path)
        fds = []
        where, mask = _set_of(where)
        try:
            if mask is not None:
                fds.append(_in_memory(mask))
            packet = _packet_of({"op": "join", "version": _VERSION, "where": where, **request})
            socket.send_fds(connection, [packet], fds)
        finally:
            for fd in fds:
                os.close(fd)
        return _answered(connection)
    except BaseException:
        connection.close()
        raise


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

    listed = numpy.asarray(where)
    if listed.dtype == bool:
        listed = numpy.flatnonzero(listed)
    if listed.ndim != 1 or listed.dtype.kind not in "iu":
        raise FeedError(f"where: expected a range, a dict, a boolean mask or ids, found {type(where).__name__} of {listed.dtype}")
    return {"listed": len(listed)}, listed.astype("<u8").tobytes()


def _in_memory(content):
    fd = os.memfd_create("lockstep-feed-set", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    return fd
