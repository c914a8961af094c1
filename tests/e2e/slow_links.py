"""A TCP proxy between the ranks of a gloo job that delays or throttles what goes from some ranks to others.

with SlowLinks({(2, 1): Shape(delay_s=0.02)}) as links: subprocess.Popen(..., env={**env, **links.environment()})
"""
import collections
import os
import pathlib
import selectors
import socket
import struct
import tempfile
import threading
import time
from dataclasses import dataclass

BINARY = os.environ.get("LOCKSTEP_BINARY") or pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/lockstep"
DETOUR = str(pathlib.Path(BINARY).parent.parent / "lib/liblockstep-test-detour.so")
ENDS = struct.Struct("=ii128s")  # detour.c


@dataclass
class Shape:
    delay_s: float = 0.0
    bytes_per_s: float = float("inf")
    bytes: float = float("inf")  # then it is dead: nothing comes through, and nobody is told


class Pipe:
    """One direction of a connection: what was read waits until it may go on."""

    def __init__(self, source, sink, shape):
        self.source, self.sink, self.shape = source, sink, shape
        self.waiting = collections.deque()  # (when, bytes)
        self.free_at = 0.0
        self.ended = False
        self.taken = 0

    def read(self):
        try:
            data = self.source.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.taken += len(data)
        if self.taken > self.shape.bytes:
            self.ended = not data
            return
        now = time.monotonic()
        self.free_at = max(self.free_at, now) + len(data) / self.shape.bytes_per_s
        self.waiting.append((self.free_at + self.shape.delay_s, data))
        self.ended = not data

    def write(self):
        """When there is something to do next; None: nothing is waiting."""
        while self.waiting:
            when, data = self.waiting[0]
            now = time.monotonic()
            if when > now:
                return when
            try:
                if data:
                    sent = self.sink.send(data)
                else:
                    self.sink.shutdown(socket.SHUT_WR)
                    sent = 0
            except BlockingIOError:
                return now + 0.0005
            except OSError:
                sent = len(data)
            self.waiting.popleft()
            if sent < len(data):
                self.waiting.appendleft((when, data[sent:]))
        return None


class SlowLinks:
    def __init__(self, shapes):
        self.shapes = shapes
        self.folder = tempfile.TemporaryDirectory()
        self.server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        self.stop_reader, self.stop_writer = socket.socketpair()
        self.pipes = []
        self.thread = threading.Thread(target=self.run)

    def environment(self):
        return {"DETOUR_DIR": self.folder.name, "DETOUR_PORT": str(self.server.getsockname()[1])}

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop_writer.send(b"x")
        self.thread.join()
        for pipe in self.pipes:
            pipe.source.close()
        for one in self.server, self.stop_reader, self.stop_writer:
            one.close()
        self.folder.cleanup()

    def accept(self, selector):
        client, _ = self.server.accept()
        first, second, target = ENDS.unpack(client.recv(ENDS.size, socket.MSG_WAITALL))
        family = socket.AF_INET6 if struct.unpack_from("=H", target)[0] == socket.AF_INET6 else socket.AF_INET
        port = struct.unpack_from("!H", target, 2)[0]
        address = socket.inet_ntop(family, target[8:24] if family == socket.AF_INET6 else target[4:8])
        server = socket.create_connection((address, port))
        for end in client, server:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink, way in (client, server, (first, second)), (server, client, (second, first)):
            pipe = Pipe(source, sink, self.shapes.get(way, Shape()))
            self.pipes.append(pipe)
            selector.register(source, selectors.EVENT_READ, pipe)

    def run(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self.server, selectors.EVENT_READ, self.server)
            selector.register(self.stop_reader, selectors.EVENT_READ, None)
            wake = None
            while True:
                timeout = None if wake is None else max(0.0, wake - time.monotonic())
                for key, _ in selector.select(timeout):
                    if key.data is None:
                        return
                    if key.data is self.server:
                        self.accept(selector)
                        continue
                    key.data.read()
                    if key.data.ended:
                        selector.unregister(key.fileobj)
                wakes = [when for when in (pipe.write() for pipe in self.pipes) if when is not None]
                wake = min(wakes, default=None)
