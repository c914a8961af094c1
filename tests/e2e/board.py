"""Reads a run's board and checkpoint buffers (lockstep/client/board.h, join.h) through the starter's descriptors."""
import collections
import os
import struct

HEADER_BYTES = BLOCK_BYTES = 512
SLOTS_AT, SLOT_BYTES, SLOTS = 256, 64, 2
DONE = 2

Slot = collections.namedtuple("Slot", "state epoch step bytes")


class Board:
    """Needs the right to open the starter's descriptors: root, or its own user."""

    def __init__(self, starter, ranks):
        self.starter, self.ranks = starter, ranks
        self.path = self._descriptors("lockstep-board")[0]

    def _descriptors(self, name):
        paths = (f"/proc/{self.starter}/fd/{fd}" for fd in os.listdir(f"/proc/{self.starter}/fd"))
        return [path for path in paths if name in os.readlink(path)]

    def slots(self, rank):
        with open(self.path, "rb") as board:
            block = os.pread(board.fileno(), BLOCK_BYTES, HEADER_BYTES + rank * BLOCK_BYTES)
        return [Slot._make(struct.unpack_from("<QQqQ", block, SLOTS_AT + SLOT_BYTES * index)) for index in range(SLOTS)]

    def committed(self):
        """The steps of which every rank holds a complete checkpoint, oldest first."""
        done = ({slot.step for slot in self.slots(rank) if slot.state == DONE} for rank in range(self.ranks))
        return sorted(set.intersection(*done))

    def flip_bit(self, rank, pid, step):
        """In the middle of the checkpoint that this rank, process `pid`, took after this step."""
        index, slot = next((index, slot) for index, slot in enumerate(self.slots(rank)) if slot.step == step)
        place = slot.bytes // 2
        with open(self._memory(pid, f"lockstep-slot{index}"), "r+b", buffering=0) as memory:
            byte = os.pread(memory.fileno(), 1, place)[0]
            os.pwrite(memory.fileno(), bytes([byte ^ 4]), place)

    def _memory(self, pid, name):
        """Which of the starter's descriptors it is, the inode in the worker's mappings tells."""
        with open(f"/proc/{pid}/maps") as maps:
            inodes = {int(line.split()[4]) for line in maps if name in line}
        return next(path for path in self._descriptors(name) if os.stat(path).st_ino in inodes)
