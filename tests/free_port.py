"""Ports for what a test or a bench starts, and is told before it starts it."""
import random
import socket

# Below those that Linux gives to outgoing connections and to whoever asks for any: they can't be taken before they are listened to.
FIRST, LAST = 10000, 32767
given = set()


def free_port():
    """Nobody listens there, and no other call in this process gave it."""
    while True:
        port = random.randint(FIRST, LAST)
        if port in given:
            continue
        given.add(port)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
