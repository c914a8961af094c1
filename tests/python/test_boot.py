"""What a worker is given at its start, whatever its script does to the process."""
import os
import subprocess
import sys
import tempfile
import unittest

PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python")

# As a library does that makes a daemon of its process, and then opens what it needs.
CLOSES_ALL = """
import os, resource, signal, sys
from lockstep._boot import prepare_worker
if sys.argv[2] == "few":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
prepare_worker()
if sys.argv[2] == "closed":
    os.closerange(3, 256)
    own = [os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT) for _ in range(8)]
os.kill(os.getpid(), signal.SIGRTMIN + 7)
print("lives")
"""


class Stacks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.stacks, self.own = (os.path.join(folder.name, name) for name in ("stacks", "own"))

    def ask(self, how):
        environment = dict(os.environ, PYTHONPATH=PYTHON, LOCKSTEP_STACKS_FILE=self.stacks)
        done = subprocess.run([sys.executable, "-c", CLOSES_ALL, self.own, how], env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(("lives\n", "", 0), (done.stdout, done.stderr, done.returncode))
        with open(self.stacks) as file:
            self.assertIn("<string>", file.read())

    def test_they_never_go_into_a_file_of_the_script(self):
        self.ask("closed")
        self.assertEqual(0, os.path.getsize(self.own))

    def test_a_low_limit_of_descriptors_forbids_none(self):
        self.ask("few")


if __name__ == "__main__":
    unittest.main()
