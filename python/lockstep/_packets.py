"""JSON packets with descriptors over the SEQPACKET socket that the starter left in LOCKSTEP_STARTER_FD."""

import json
import os
import socket

MAX_PACKET = 192 * 1024
MAX_FDS = 128


def starter_socket():
    fd = int(os.environ.pop("LOCKSTEP_STARTER_FD"))
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)


def receive(sock):
    """One packet as (dict, descriptors); (None, []) when the starter is gone."""
    text, fds, flags, _ = socket.recv_fds(sock, MAX_PACKET, MAX_FDS)
    if flags & socket.MSG_TRUNC:
        raise OSError(f"a packet of more than {MAX_PACKET} bytes")
    return (json.loads(text), fds) if text else (None, fds)


def _text(message):
    """JSON of it. Paths and arguments may hold bytes that are no text; the starter could not read those."""
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")


def send(sock, **message):
    sock.send(_text(message))
