"""Heartbeats from ranks to a launcher that asks for them: policy_heartbeat.py, or NVIDIA's resiliency extension."""
import os
import socket

VARIABLE = "RACE_HEARTBEATS"
BEATS_TO_LEARN = 10


def sender(rank):
    """A function that sends one beat; it does nothing where no launcher listens. For all ranks to call after each step."""
    if "FT_RANK_MONITOR_IPC_SOCKET" in os.environ:
        return sender_to_extension()
    path = os.environ.get(VARIABLE)
    return sender_to_policy(rank, path) if path else lambda: None


def sender_to_extension():
    """As the extension's documentation has it: its timeouts are learnt from the beats seen so far, by all ranks together."""
    from nvidia_resiliency_ext import fault_tolerance

    client = fault_tolerance.RankMonitorClient()
    client.init_workload_monitoring()
    sent = 0

    def beat():
        nonlocal sent
        client.send_heartbeat()
        sent += 1
        if sent == BEATS_TO_LEARN:
            client.calculate_and_set_hb_timeouts()

    return beat


def sender_to_policy(rank, path):
    """One datagram per beat, never waited for."""
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
