"""What counts as left in /dev/shm by a test, and what does not."""

import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import shared_memory

MAPS = "import mmap, sys; file = open(sys.argv[1], 'r+b'); held = mmap.mmap(file.fileno(), 4096); print('mapped', flush=True); sys.stdin.read()"


class SharedMemory(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, value in {"FOLDER": folder.name, "PATIENCE_S": 0.3}.items():
            patch = mock.patch.object(shared_memory, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        self.make("lockstep-of-before")
        self.before = shared_memory.names()

    def make(self, name):
        (self.folder / name).write_bytes(bytes(4096))

    def assert_left(self, *names):
        self.assertEqual(set(names), shared_memory.left(self.before))

    def test_what_lockstep_torch_and_python_leave_counts(self):
        names = {"lockstep-e2e-71", "lockstep-stage-0", "torch_71_123_0", "pym-71-x", "mp-x", "psm_x", "sem.mp-x", "nccl-x"}
        for name in names:
            self.make(name)
        self.assert_left(*names)

    def test_what_other_programs_make_does_not(self):
        for name in ("org.chromium.Chromium.shmem.x", "PostgreSQL.71", "pulse-shm-71", "a"):
            self.make(name)
        self.assert_left()

    def test_a_file_that_goes_in_time_is_not_left(self):
        self.make("torch_71_123_0")
        with mock.patch.object(shared_memory.time, "sleep", lambda seconds: (self.folder / "torch_71_123_0").unlink(missing_ok=True)):
            self.assert_left()

    def test_a_file_that_a_living_child_has_mapped_is_left(self):
        self.make("torch_71_123_0")
        with subprocess.Popen([sys.executable, "-c", MAPS, str(self.folder / "torch_71_123_0")], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            child.stdout.readline()
            self.assert_left("torch_71_123_0")
            with mock.patch.object(shared_memory, "ancestry", lambda pid: ["1"]):  # another test's child
                self.assert_left()
            child.stdin.close()


if __name__ == "__main__":
    unittest.main()
