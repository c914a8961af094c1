"""What a worker is given at its start, whatever its script does to the process."""
import json
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


# A script as exec starts it (sitecustomize.py): sys.argv[1] says what it does.
RAISES = """
import os, sys, traceback
os.environ["LOCKSTEP_WORKER_PID"] = str(os.getpid())
from lockstep._boot import prepare_worker
prepare_worker()

class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def own_hook(kind, value, trace):
    print("own:", traceback.format_exception(kind, value, trace)[-1], end="")

if "hook" in sys.argv:
    sys.excepthook = own_hook
raise Silent if "silent" in sys.argv else ValueError("learning rate is negative")
"""


class Exceptions(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.note = os.path.join(folder.name, "error.json")

    def ended(self, *how):
        environment = dict(os.environ, PYTHONPATH=PYTHON, LOCKSTEP_ERROR_FILE=self.note)
        done = subprocess.run([sys.executable, "-c", RAISES, *how], env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(1, done.returncode)
        with open(self.note) as file:
            note = json.load(file)
        return done, note["type"], note["message"]

    def test_of_a_script_with_a_hook_of_its_own(self):
        done, *note = self.ended("hook")
        self.assertEqual(["ValueError", "learning rate is negative"], note)
        self.assertEqual(("own: ValueError: learning rate is negative\n", ""), (done.stdout, done.stderr))

    def test_without_a_text(self):
        done, *note = self.ended("silent")
        self.assertEqual(["Silent", "<exception str() failed>"], note)
        self.assertEqual(1, done.stderr.count("Traceback"), done.stderr)
        self.assertNotIn("_boot.py", done.stderr)


if __name__ == "__main__":
    unittest.main()
