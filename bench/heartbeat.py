"""Heartbeats from ranks to a launcher that asks for them: one datagram per beat, never waited for."""
import os
import socket

VARIABLE = "RACE_HEARTBEATS"


def sender(rank):
    """A function that sends one beat; it does nothing where no launcher listens."""
    path = os.environ.get(VARIABLE)
    if not path:
        return lambda: None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.setblocking(False)

    def beat():
        try:
            sock.sendto(b"%d" % rank, path)
        except OSError:
            pass  # the launcher is busy or gone

    return beat


def listen(folder):
    """A socket on which beats arrive, and the path to give to the ranks."""
    path = os.path.join(folder, "beats")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(path)
    sock.setblocking(False)
    return sock, path


def beats(sock):
    """The ranks of all beats that have arrived."""
    while True:
        try:
            yield int(sock.recv(16))
        except BlockingIOError:
            return
