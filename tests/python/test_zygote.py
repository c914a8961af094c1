"""A worker that the zygote has forked: its threads, and how it ends."""
import bz2
import csv
import gc
import gzip
import io
import json
import os
import pathlib
import py_compile
import shutil
import subprocess
import sys
import tempfile
import textwrap
import types
import unittest
import zipfile
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
from lockstep import _anew, _zygote

LEFT_OPEN = []  # as names of a script


def left_by(script):
    """Runs script() in a fork that ends as a worker does. Returns its exit status."""
    child = os.fork()
    if child == 0:
        try:
            script()
        finally:
            _zygote._leave(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Leave(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())  # no TemporaryDirectory: atexit of the fork would remove it
        self.addCleanup(shutil.rmtree, self.folder)

    def test_files_that_are_open_are_written(self):
        def script():
            curve = open(self.folder / "curve.csv", "w", newline="")
            csv.writer(curve).writerow(["step", 1])
            kept = tempfile.NamedTemporaryFile("w", dir=self.folder, suffix=".kept", delete=False)
            kept.write("kept")
            raw = open(self.folder / "buffered", "w+b", buffering=1 << 20)
            raw.write(b"b" * 1000)
            packed = [gzip.open(self.folder / "text.gz", "wt"), io.TextIOWrapper(bz2.open(self.folder / "text.bz2", "wb"))]
            for file in packed:
                file.write("packed")
            archive = zipfile.ZipFile(self.folder / "archive.zip", "w")
            archive.writestr("name", "packed")
            removed = tempfile.NamedTemporaryFile("w", dir=self.folder, suffix=".removed")
            removed.write("removed")
            LEFT_OPEN.extend([curve, kept, raw, *packed, archive, removed])
            gc.freeze()

        self.assertEqual(3, left_by(script))
        self.assertEqual("step,1\r\n", (self.folder / "curve.csv").read_bytes().decode())
        self.assertEqual(["kept"], [path.read_text() for path in self.folder.glob("*.kept")])
        self.assertEqual([], list(self.folder.glob("*.removed")))
        self.assertEqual(1000, (self.folder / "buffered").stat().st_size)
        self.assertEqual(b"packed", zipfile.ZipFile(self.folder / "archive.zip").read("name"))
        self.assertEqual([b"packed"] * 2, [gzip.open(self.folder / "text.gz").read(), bz2.open(self.folder / "text.bz2").read()])

    def test_what_the_zygote_has_made_stays_for_the_other_workers(self):
        def script():
            with mock.patch.object(_zygote, "_fresh_chance"):
                _zygote._begin_anew()

        with tempfile.TemporaryDirectory(dir=self.folder) as made:
            self.assertEqual(3, left_by(script))
            self.assertTrue(os.path.isdir(made))

    def full_pipe(self):
        """The end to write to of one whose reader has stopped."""
        reads, writes = os.pipe()
        self.addCleanup(os.close, reads)
        self.addCleanup(os.close, writes)
        os.set_blocking(writes, False)
        os.write(writes, b"x" * (1 << 20))  # until it is full
        os.set_blocking(writes, True)
        return writes

    def test_what_cannot_be_written_holds_up_neither_the_rest_nor_the_end(self):
        stuck, (reads, writes) = self.full_pipe(), os.pipe()

        def script():
            full, pipe, closed = open("/dev/full", "w"), open(stuck, "w", closefd=False), open(self.folder / "closed", "w")
            others = [open(os.dup(writes), "w") for _ in range(3)]
            LEFT_OPEN.extend([others[0], full, pipe, others[1], closed, open(self.folder / "log", "w"), others[2]])
            for file in LEFT_OPEN:
                file.write("line")
            os.close(closed.fileno())

        self.assertEqual(3, left_by(script))
        self.assertEqual("line", (self.folder / "log").read_text())
        os.close(writes)
        with open(reads) as file:
            self.assertEqual("line" * 3, file.read())

    def test_whoever_reads_a_pipe_gets_the_last_line(self):
        reads, writes = os.pipe()

        def script():
            del sys.excepthook
            LEFT_OPEN.append(open(writes, "w"))
            LEFT_OPEN[-1].write("line")

        self.assertEqual(3, left_by(script))
        os.close(writes)
        with open(reads) as file:
            self.assertEqual("line", file.read())


HOOK = """
import sys, traceback
def hook(kind, value, trace):
    sys.stderr.write("own hook\\n")
    traceback.print_exception(kind, value, trace)
sys.excepthook = hook
"""


class Ends(unittest.TestCase):
    """How the end of a script is told, held against what the interpreter does with the same file."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.script, self.note = self.folder / "script.py", self.folder / "note.json"

    def both(self, text):
        """(exit status, output) of a forked worker and of the interpreter."""
        self.script.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        with open(self.folder / "output", "w+") as output:
            child = os.fork()
            if child == 0:
                try:
                    os.dup2(output.fileno(), 1)
                    os.dup2(output.fileno(), 2)
                    sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))
                    os.environ.update(LOCKSTEP_ERROR_FILE=str(self.note), LOCKSTEP_WORKER_PID=str(os.getpid()))
                    _zygote.atexit._clear()  # of what runs the tests
                    _zygote._boot.prepare_worker()
                    _zygote._leave(_zygote._exit_status([str(self.script)], False))
                finally:
                    os._exit(99)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            ours = output.read()
        plain = subprocess.run([sys.executable, "-u", str(self.script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return (status, ours), (plain.returncode, plain.stdout)

    def assert_as_plain(self, text):
        worker, plain = self.both(text)
        self.assertEqual(plain, worker)
        return json.loads(self.note.read_text())

    def test_a_hook_of_the_script(self):
        note = self.assert_as_plain(HOOK + "raise ValueError('negative')")
        self.assertEqual(("ValueError", "negative"), (note["type"], note["message"]))

    def test_a_hook_that_ends_the_process(self):
        note = self.assert_as_plain("import sys\nsys.excepthook = lambda *error: sys.exit(7)\nraise ValueError('negative')")
        self.assertEqual("ValueError", note["type"])

    def test_a_hook_that_fails(self):
        note = self.assert_as_plain("import sys\ndef hook(*error): raise KeyError('hook')\nsys.excepthook = hook\nraise ValueError('negative')")
        self.assertEqual("ValueError", note["type"])

    def test_an_exception_without_a_text(self):
        note = self.assert_as_plain("""
            class Silent(Exception):
                def __str__(self):
                    raise RuntimeError("no text")
            raise Silent
            """)
        self.assertEqual("Silent", note["type"])

    def test_a_text_that_ends_processes(self):
        for raises in ("SystemExit(7)", "KeyboardInterrupt"):
            note = self.assert_as_plain(f"""
                class Silent(Exception):
                    def __str__(self):
                        raise {raises}
                raise Silent
                """)
            self.assertEqual("Silent", note["type"])

    def test_an_exit_whose_reason_has_no_text(self):
        worker, plain = self.both("""
            import sys
            class Silent:
                def __str__(self):
                    raise KeyboardInterrupt
            sys.exit(Silent())
            """)
        self.assertEqual(plain, worker)

    def test_a_hook_that_was_removed(self):
        note = self.assert_as_plain("import sys\ndel sys.excepthook\nraise ValueError('negative')")
        self.assertEqual(("ValueError", "negative"), (note["type"], note["message"]))

    def test_a_hook_that_looks_for_the_last(self):
        note = self.assert_as_plain("""
            import sys, traceback
            sys.excepthook = lambda *error: traceback.print_last()
            raise ValueError("negative")
            """)
        self.assertEqual("ValueError", note["type"])

    def test_what_its_functions_held_ends_behind_atexit(self):
        self.assert_as_plain("""
            import atexit, sys
            class Held:
                def __del__(self):
                    print("held no more", flush=True)
            def train():
                held = Held()
                raise ValueError("negative")
            atexit.register(lambda: print("at exit of", repr(sys.last_value), flush=True))
            train()
            """)

    def test_one_that_was_shown_is_not_noted(self):
        for keeps in ("", "sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()"):
            worker, plain = self.both(f"""
                import sys
                try:
                    raise ValueError("negative")
                except ValueError:
                    {keeps or "pass"}
                    sys.excepthook(*sys.exc_info())
                sys.exit(3)
                """)
            self.assertEqual((plain, 3, False), (worker, worker[0], self.note.exists()))

    def test_a_script_that_cannot_be_compiled(self):
        note = self.assert_as_plain("x = (1,\n")
        self.assertEqual(("SyntaxError", "script.py:1"), (note["type"], note["where"]))

    def test_an_interrupt_ends_by_its_signal(self):
        note = self.assert_as_plain("import atexit\natexit.register(lambda: print('at exit', flush=True))\nraise KeyboardInterrupt")
        self.assertEqual("KeyboardInterrupt", note["type"])
        for text in ("class Own(KeyboardInterrupt): pass\nraise Own", "import sys\nsys.excepthook = lambda *error: sys.exit(7)\nraise KeyboardInterrupt",
                     "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nraise KeyboardInterrupt"):
            self.assert_as_plain(text)

    def test_exit_codes_of_any_size(self):
        for code in ("256", "300", "-1", "-2", "True", "2**40 + 5", "2**63 - 1", "2**63", "-2**63", "2**70 + 5", "-2**70"):
            worker, plain = self.both(f"import sys\nsys.exit({code})")
            self.assertEqual(plain, worker, code)

    def test_a_script_that_is_compiled(self):
        source, compiled = self.folder / "source.py", self.folder / "source.pyc"
        source.write_text("import sys\nprint(__name__, sys.argv[0], __file__, flush=True)\nraise ValueError('negative')")
        py_compile.compile(str(source), str(compiled))
        self.assertEqual("ValueError", self.assert_as_plain(compiled.read_bytes())["type"])
        self.script = compiled
        self.assert_as_plain(compiled.read_bytes())

    def test_a_signal_while_threads_are_waited_for(self):
        """What its handler raises ends the wait, and nothing else."""
        worker, plain = self.both("""
            import atexit, os, signal, sys, threading
            atexit.register(lambda: print("atexit ran", flush=True))
            handled, waits = [], threading.Event()
            def handler(number, frame):
                handled.append(number)
                sys.exit(0)
            signal.signal(signal.SIGTERM, handler)
            ends = threading._shutdown
            def shutdown():
                waits.set()
                ends()
            threading._shutdown = shutdown
            stays = threading.Event()
            def thread():
                waits.wait()
                while not handled:  # one that comes just before the interpreter begins to wait doesn't wake it
                    os.kill(os.getpid(), signal.SIGTERM)
                    stays.wait(0.2)
                stays.wait(60)
            threading.Thread(target=thread).start()
            """)
        self.assertEqual(0, worker[0], worker)
        self.assertIn("atexit ran", worker[1])
        self.assertIn("Exception ignored in", worker[1])
        self.assertEqual((plain[0], True), (worker[0], "atexit ran" in plain[1]), plain)


class Threads(unittest.TestCase):
    def counts(self, name, value, **environment):
        """What torch and OpenBLAS are told where a script sets this variable, torch having 1 thread; None: that it can't be done here."""
        told = [1, None]
        torch = types.SimpleNamespace(get_num_threads=lambda: told[0], set_num_threads=lambda count: told.__setitem__(0, count))
        with mock.patch.dict(sys.modules, torch=torch), mock.patch.dict(os.environ, environment, clear=True), \
                mock.patch.object(_zygote, "_openblas", [lambda count: told.__setitem__(1, count)]):
            return told if _zygote._count_threads_as(name, value) else None

    def test_they_are_what_libraries_make_of_their_variables(self):
        self.assertEqual([3, 3], self.counts("OMP_NUM_THREADS", "3"))
        self.assertEqual([3, 1], self.counts("MKL_NUM_THREADS", "3", OMP_NUM_THREADS="1"))
        self.assertEqual([2, 3], self.counts("OMP_NUM_THREADS", "3", MKL_NUM_THREADS="2"))
        self.assertEqual([1, 3], self.counts("OPENBLAS_NUM_THREADS", "3"))
        self.assertEqual([2, 2], self.counts("OMP_NUM_THREADS", None, OMP_NUM_THREADS="3", MKL_NUM_THREADS="2"))

    def test_what_is_no_such_number_is_left_to_a_new_process(self):
        for name, value in (("OMP_NUM_THREADS", "4,2"), ("OMP_NUM_THREADS", "0"), ("OMP_NUM_THREADS", ""), ("OMP_NUM_THREADS", None), ("OMP_SCHEDULE", "3")):
            self.assertIsNone(self.counts(name, value, OMP_NUM_THREADS="3"))
        with mock.patch.object(_zygote, "_untold", ["libother_openblas.so"]):
            self.assertIsNone(self.counts("OMP_NUM_THREADS", "3"))

    def late(self, **environment):
        with mock.patch.dict(os.environ, environment, clear=True):
            return _anew.came_too_late(environment, lambda name, value: (name, value) == ("OMP_NUM_THREADS", "2"))

    def test_variables_that_were_read_before_the_fork_come_too_late(self):
        for name in ("OMP_SCHEDULE", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "PYTHONHASHSEED", "LD_LIBRARY_PATH", "TORCH_LOGS", "KMP_AFFINITY", "TZ",
                     "LANG", "LC_ALL"):
            self.assertEqual(name, self.late(LR="1", **{name: "1"}))
        for name in ("LR", "NCCL_DEBUG", "TORCH_NCCL_BLOCKING_WAIT", "PYTORCH_CUDA_ALLOC_CONF", "LANGCHAIN_TRACING", "TZ_OF_USERS"):
            self.assertIsNone(self.late(**{name: "1"}), name)
        self.assertIsNone(self.late(OMP_NUM_THREADS="2"), "is set in place")
        self.assertEqual("OMP_NUM_THREADS", self.late(OMP_NUM_THREADS="2,1"))


if __name__ == "__main__":
    unittest.main()
