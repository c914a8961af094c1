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
    text, fds, _, _ = socket.recv_fds(sock, MAX_PACKET, MAX_FDS)
    return (json.loads(text), fds) if text else (None, fds)


def send(sock, **message):
    sock.send(json.dumps(message).encode())
