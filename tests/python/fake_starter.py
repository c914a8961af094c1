"""The starter's end of lockstep/client/join.h for tests of the Python package: a thread, a board, a ring and memfds; and workers by fork."""
import array
import mmap
import os
import pickle
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback

MESSAGE = struct.Struct("<IIiiQQI28x256s")  # struct ls_join_message
HELLO, BUFFERS, ANSWER_OK, ANSWER_REFUSED = 1, 2, 100, 101
HEADER, BLOCK, SLOT_AT, SLOT = 512, 512, 256, 64
RING = struct.Struct("<8sI52xQQ48xQQ48x")  # struct ls_ring, empty, of 64 cells


def shared(size, content=b""):
    """A memfd of this size and this process's mapping of it."""
    fd = os.memfd_create("test")
    os.ftruncate(fd, size)
    memory = mmap.mmap(fd, size)
    memory[: len(content)] = content
    return fd, memory


class FakeStarter:
    """One rank's starter. `refusal`: the sentence with which it answers requests for buffers above `allowance` bytes."""

    def __init__(self, world_size=1):
        self.world_size = world_size
        self.refusal, self.allowance = None, 0
        self.board_fd, self.board = shared(HEADER + world_size * BLOCK, struct.pack("<8sII48xII", b"LBOARD01", 1, world_size, 0, world_size))
        self.ring_fd, _ = shared(192 + 64 * 64, RING.pack(b"LSDRIN01", 64, 0, 0, 0, 0))
        self.slot_bytes, self.slots = 0, []
        self.run = tempfile.mkdtemp()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.run + "/worker.sock")
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        shutil.rmtree(self.run)
        for fd in (self.board_fd, self.ring_fd, *(fd for fd, _ in self.slots)):
            os.close(fd)
        for name in ("LOCKSTEP_RUN", "LOCKSTEP_RANK", "LOCKSTEP_EPOCH"):
            os.environ.pop(name, None)

    def start_epoch(self, epoch, restore=(0, -1)):
        """restore: the (epoch, step) that this epoch's workers load."""
        os.environ.update(LOCKSTEP_RUN=self.run, LOCKSTEP_RANK="0", LOCKSTEP_EPOCH=str(epoch))
        struct.pack_into("<QQQq", self.board, 16, epoch, epoch, *restore)

    def field(self, offset, kind="q"):
        """Of rank 0's block, at the offset that docs/formats/board.md gives."""
        return struct.unpack_from("<" + kind, self.board, HEADER + offset)[0]

    def done(self):
        """{(epoch, step)} of rank 0's DONE slots."""
        slots = [struct.unpack_from("<QQq", self.board, HEADER + SLOT_AT + i * SLOT) for i in range(2)]
        return {(epoch, step) for state, epoch, step in slots if state == 2}

    def flip_bits(self):
        """Damages the content of both slots."""
        for _, content in self.slots:
            content[64] ^= 1

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                while request := connection.recv(MESSAGE.size):
                    self._answer(connection, MESSAGE.unpack(request))

    def _answer(self, connection, request):
        kind, _, _, _, _, size, _, _ = request
        refused = kind == BUFFERS and self.refusal is not None and size > self.allowance
        fds = [self.board_fd, self.ring_fd] if kind == HELLO else [] if refused else self._buffers(size)
        text = self.refusal.encode() if refused else b""
        reply = MESSAGE.pack(ANSWER_REFUSED if refused else ANSWER_OK, 2, 0, 0, 0, self.slot_bytes, self.world_size, text)
        connection.sendmsg([reply], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])

    def _buffers(self, size):
        if not self.slots:
            self.slots = [shared(size) for _ in range(2)]
        elif size > self.slot_bytes:
            for fd, content in self.slots:
                content.resize(size)  # and the memfd with it
        self.slot_bytes = max(self.slot_bytes, size)
        return [fd for fd, _ in self.slots]


def in_worker(function, *arguments):
    """Runs the function in a forked process and returns (its value, its stderr). It may end itself by os.kill: then the value is None."""
    with tempfile.TemporaryFile() as results, tempfile.TemporaryFile() as errors:
        pid = os.fork()
        if pid == 0:
            os.dup2(errors.fileno(), 2)
            _run_and_exit(function, arguments, results)
        _, status = os.waitpid(pid, 0)
        for file in (results, errors):
            file.seek(0)
        text = errors.read().decode()
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return None, text
        if status != 0:
            raise AssertionError(f"the worker ended with status {status}:\n{text}")
        return pickle.load(results), text


def _run_and_exit(function, arguments, results):
    sys.stderr = open(2, "w", closefd=False)
    try:
        pickle.dump(function(*arguments), results)
        results.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
