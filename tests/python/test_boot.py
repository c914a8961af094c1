"""What a worker is given at its start, whatever its script does to the process."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

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


# What comes before a script that exec starts (sitecustomize.py).
BEGINS = """
import os
os.environ["LOCKSTEP_WORKER_PID"] = str(os.getpid())
from lockstep._boot import prepare_worker
prepare_worker()
"""

HOOK = """
import sys, traceback
def own_hook(kind, value, trace):
    print("own:", traceback.format_exception(kind, value, trace)[-1], end="")
sys.excepthook = own_hook
"""

# Ways by which an exception ends a script, one a paragraph.
ENDINGS = """
raise ValueError("negative")

def train():
    raise ValueError("negative")
train()

try:
    raise ValueError("negative")
finally:
    print("cleans up")

try:
    raise ValueError("negative")
except ValueError:
    print("tells")
    raise

try:
    raise ValueError("negative")
except KeyError:
    pass

with open("/dev/null"):
    raise ValueError("negative")

try:
    raise KeyError
except KeyError as error:
    raise ValueError("negative") from error
"""

# And ways by which one is shown and does not end it.
SHOWN = """
try:
    raise ValueError("negative")
except ValueError:
    sys.excepthook(*sys.exc_info())

try:
    raise ValueError("negative")
except ValueError:
    sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
    traceback.print_last()

try:
    raise ValueError("negative")
except ValueError:
    sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
sys.exit(0)

def shows():
    try:
        raise ValueError("negative")
    except ValueError:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
        sys.excepthook(*sys.exc_info())
shows()

import code
code.InteractiveInterpreter().runcode("raise ValueError('negative')")

import code
code.InteractiveInterpreter().runsource("x = (1,,")

sys.last_value = ValueError("negative")

sys.last_value = "negative"
"""


# native() ends as compiled code of torch does, by a RuntimeError that no statement raises.
RAISES = """
import socket, types
def native():
    numbers = {1: 1}
    for number in numbers:
        numbers[number + 1] = 1
def module(name):
    made = types.ModuleType(name)
    exec("def fails(error): raise error", made.__dict__)
    return made
"""

CHANGED = "dictionary changed size during iteration"

# How a script ends, the module that is noted to have raised it ("": compiled code may have), and those of what it was raised for or in the handling of, and whether it
# is the same in other words.
RAISED_IN = [
    ("socket.create_connection(('127.0.0.1', 9))", "socket", []),
    ("socket.socket().connect(('127.0.0.1', 9))", "__main__", []),
    ("raise RuntimeError('Connection refused')", "__main__", []),
    ("{1: 2}[3]", "__main__", []),
    ("native()", "", []),
    ("try:\n    native()\nfinally:\n    print('cleans up')", "", []),
    ("try:\n    native()\nexcept RuntimeError:\n    raise", "", []),
    ("try:\n    native()\nexcept RuntimeError as error:\n    raise RuntimeError('rank 3') from error", "__main__", [(CHANGED, "", True)]),
    ("try:\n    native()\nexcept RuntimeError:\n    raise ValueError('rank 3')", "__main__", [(CHANGED, "", True)]),
    ("try:\n    native()\nexcept RuntimeError:\n    raise RuntimeError('rank 3') from None", "__main__", [(CHANGED, "", False)]),
    ("try:\n    native()\nexcept RuntimeError:\n    {1: 2}[3]", "__main__", [(CHANGED, "", False)]),
    ("try:\n    native()\nexcept RuntimeError:\n    socket.create_connection(('127.0.0.1', 9))", "socket", [(CHANGED, "", False)]),
    ("try:\n    native()\nexcept RuntimeError:\n    module('train').fails(ValueError('own'))", "train", [(CHANGED, "", False)]),
    ("try:\n    native()\nfinally:\n    module('train').fails(ValueError('own'))", "train", [(CHANGED, "", False)]),
    ("try:\n    native()\nexcept RuntimeError:\n    pass\nraise ValueError('own')", "__main__", []),
    ("try:\n    try:\n        native()\n    except RuntimeError as error:\n        raise KeyError('rank 3') from error\nexcept KeyError:\n    raise ValueError", "__main__",
     [(CHANGED, "", True)]),
    ("try:\n    try:\n        native()\n    except RuntimeError:\n        {1: 2}[3]\nexcept KeyError as error:\n    raise ValueError from error", "__main__",
     [(CHANGED, "", False)]),
    ("try:\n    {1: 2}[3]\nexcept KeyError:\n    socket.create_connection(('127.0.0.1', 9))", "socket", []),
    ("try:\n    module('torch.serialization').fails(OSError('no file'))\nexcept OSError:\n    socket.create_connection(('127.0.0.1', 9))", "socket",
     [("no file", "torch.serialization", False)]),
    ("raise RuntimeError('rank 3') from OSError('from another process')", "__main__", []),
    ("module('requests.adapters').fails(ConnectionError('refused'))", "requests.adapters", []),
    ("module('torch.distributed.rendezvous').fails(ConnectionError('refused'))", "torch.distributed.rendezvous", []),
    ("class Odd(OSError):\n    errno = property(lambda error: 1 / 0)\nraise Odd", "", []),
    ("class Odd(OSError):\n    __cause__ = property(lambda error: 1 / 0)\nraise Odd", "__main__", []),
    ("error = KeyError()\nerror.__cause__ = error\nraise error", "__main__", []),
    ("error = OSError('again')\nerror.__cause__ = error\nraise error", "__main__", [("again", "__main__", True)] * 20),
]


class Exceptions(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.note = os.path.join(folder.name, "error.json")

    def run_script(self, text):
        environment = dict(os.environ, PYTHONPATH=PYTHON, LOCKSTEP_ERROR_FILE=self.note)
        return subprocess.run([sys.executable, "-c", BEGINS + text], env=environment, capture_output=True, text=True, check=False)

    def noted(self, *names):
        """Its type and message, or what else is named, and none any more; None: there is none."""
        if not os.path.exists(self.note):
            return None
        with open(self.note) as file:
            note = json.load(file)
        os.remove(self.note)
        return [note[name] for name in names or ("type", "message")]

    def ended(self, text):
        done = self.run_script(text)
        self.assertEqual(1, done.returncode)
        return done, self.noted()

    def test_of_a_script_with_a_hook_of_its_own(self):
        done, note = self.ended(HOOK + "raise ValueError('learning rate is negative')")
        self.assertEqual(["ValueError", "learning rate is negative"], note)
        self.assertEqual(("own: ValueError: learning rate is negative\n", ""), (done.stdout, done.stderr))

    def test_without_a_text(self):
        for raises in ("RuntimeError('no text')", "SystemExit(7)", "KeyboardInterrupt"):
            done, note = self.ended(f"class Silent(Exception):\n    def __str__(self):\n        raise {raises}\nraise Silent")
            self.assertEqual(["Silent", "<exception str() failed>"], note)
            self.assertEqual(1, done.stderr.count("Traceback"), done.stderr)
            self.assertNotIn("_boot.py", done.stderr)

    def test_of_any_kind(self):
        odd = """
class Nameless(type):
    __name__ = property(lambda kind: 1 / 0)
class Number(Exception, metaclass=Nameless):
    def __str__(self):
        return 3
raise Number
"""
        for text, note in ((odd, ["Number", "<exception str() failed>"]),
                           ("raise ValueError('\\udc80' + 'x' * 5000)", ["ValueError", "?" + "x" * 3999]),
                           ("raise SyntaxError('no', (object(), 1, 2, 'x'))", ["SyntaxError", "no (line 1)"])):
            with self.subTest(note):
                done, found = self.ended(text)
                self.assertEqual(note, found)
                self.assertEqual(1, done.stderr.count("Traceback"), done.stderr)

    def test_that_end_a_script_however_it_raises_them(self):
        for hook in ("", HOOK, HOOK + "import functools\nsys.excepthook = functools.partial(own_hook)\n"):
            for text in ENDINGS.split("\n\n"):
                with self.subTest(text, hook=hook):
                    self.assertEqual(["ValueError", "negative"], self.ended(hook + text)[1])

    def test_of_a_hook_that_passes_on(self):
        passes = "import sys\nbefore = sys.excepthook\ndef hook(*error): before(*error)\nsys.excepthook = hook\n"
        _, note = self.ended(passes + "import os, atexit\natexit.register(os._exit, 1)\nraise ValueError('negative')")
        self.assertEqual(["ValueError", "negative"], note, "before what atexit does")

    def test_that_a_script_goes_on_after_are_not_noted(self):
        for hook in ("import sys, traceback\n", HOOK):
            for text in SHOWN.split("\n\n"):
                with self.subTest(text, hook=hook):
                    done = self.run_script(hook + text)
                    self.assertEqual((0, None), (done.returncode, self.noted()), done)

    def test_tell_which_module_raised_them(self):
        for text, module, earlier in RAISED_IN:
            with self.subTest(text):
                done = self.run_script(RAISES + text)
                self.assertEqual(1, done.returncode, done)
                earlier = [{"message": message, "raised_in": raised_in, "retold": retold} for message, raised_in, retold in earlier]
                self.assertEqual([module, earlier], self.noted("raised_in", "earlier"), done.stderr)

    def test_go_where_room_was_kept_for_them_if_the_disk_is_full(self):
        run = os.path.dirname(self.note)
        os.symlink("/dev/full", self.note + ".next")
        os.mkdir(os.path.join(run, "room"))
        room = os.path.join(run, "room", "error.json")
        with mock.patch.dict(os.environ, LOCKSTEP_RUN=run, LOCKSTEP_EPOCH="3"):
            for length in (3, 20000):
                with self.subTest(length):
                    with open(room, "wb") as file:
                        file.write(bytes(4096))
                    self.assertEqual(1, self.run_script(f"raise ValueError('x' * {length})").returncode)
                    self.assertFalse(os.path.exists(self.note))
                    self.assertEqual(4096, os.path.getsize(room))
                    with open(room) as file:
                        note = json.load(file)
                    self.assertEqual((3, "ValueError", "x" * min(length, 1000)), (note["epoch"], note["type"], note["message"]))

    def test_one_that_was_shown_hides_no_other(self):
        shown = "import sys\ntry:\n    raise ValueError('negative')\nexcept ValueError:\n    sys.excepthook(*sys.exc_info())\n"
        self.assertEqual(["KeyError", "'later'"], self.ended(shown + HOOK + "raise KeyError('later')")[1])


if __name__ == "__main__":
    unittest.main()
