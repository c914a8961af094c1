"""A folder of torch.distributed.checkpoint takes the place of the one before: whatever happens meanwhile, one of them is there. Without torch."""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
from lockstep import _convert


class PutFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.target = self.folder / "dcp"

    def export(self, new="new", **patches):
        """As main() does it, with another converter. An exception goes through."""

        def convert(source, target, named):
            os.mkdir(target)
            pathlib.Path(target, ".metadata").write_text(new)

        def export(checkpoint, file):
            self.assertFalse(os.path.exists(file))

        with contextlib.ExitStack() as stack:
            for name, by in {"dcp_converter": lambda name: convert, "export": export, **patches}.items():
                stack.enter_context(mock.patch.object(_convert, name, by))
            _convert.main("export", "unread", "dcp", str(self.target), "unread")

    def found(self):
        return {path.name: (path / ".metadata").read_text() for path in self.folder.iterdir() if path.name != ".dcp.lockstep-unfinished"}

    def failing(self, number, error):
        """os.rename whose call of this number raises."""
        rename, calls = os.rename, []

        def renames(*paths):
            calls.append(paths)
            if len(calls) == number:
                raise error
            return rename(*paths)

        return mock.patch("os.rename", renames)

    def test_takes_the_place_of_the_one_before(self):
        for words in ("one", "two"):
            self.export(words)
            self.assertEqual({"dcp": words}, self.found())
        self.assertEqual([self.target], list(self.folder.iterdir()))

    def test_the_one_before_comes_back(self):
        self.export("old")
        for number, error in ((1, OSError("busy")), (2, OSError("busy")), (2, KeyboardInterrupt())):
            with self.failing(number, error), self.assertRaises(type(error)):
                self.export()
            self.assertEqual({"dcp": "old"}, self.found())

    def test_goes_only_when_the_new_one_is_on_disk(self):
        self.export("old")
        synced = []

        def sync(path):
            synced.append(os.path.basename(path))
            if path == str(self.folder):
                self.assertEqual({"dcp": "new", "dcp.before": "old"}, self.found())
            else:
                self.assertEqual("old", self.found()["dcp"])

        self.export(sync=sync)
        self.assertEqual([".metadata", "dcp", self.folder.name], synced)
        self.assertEqual({"dcp": "new"}, self.found())

    def test_a_link_goes_and_what_it_points_to_stays(self):
        self.export("old")
        os.rename(self.target, self.folder / "elsewhere")
        self.target.symlink_to("elsewhere")
        self.export()
        self.assertEqual({"dcp": "new", "elsewhere": "old"}, self.found())

    def refused(self, why):
        def convert(*_):
            self.fail("converted before it was refused")

        with self.assertRaisesRegex(_convert.ConvertError, why):
            self.export(dcp_converter=lambda name: convert)

    def test_refused_before_anything_is_converted(self):
        self.export("old")
        with mock.patch("os.path.ismount", lambda path: path == str(self.target)):
            self.refused("dcp is a mount point")
        (self.target / "notes").write_text("mine")
        self.refused(r"no folder of torch.distributed.checkpoint alone \(notes\)")
        os.rename(self.target, str(self.target) + ".before")
        self.refused("dcp.before is there, what .*dcp was before an export that was killed")


class Export(unittest.TestCase):
    """A file of torch.save in its place."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "manifest.json").write_text('{"step": 3, "world_size": 0, "files": []}')
        self.target = self.folder / "q.pt"

    def names(self):
        return {path.name for path in self.folder.iterdir()} - {"manifest.json"}

    def export(self, save=lambda value, file: file.write(b"new"), target=None):
        with mock.patch.object(_convert, "save", save):
            _convert.export(str(self.folder), str(target or self.target))

    def test_what_a_link_leads_to_is_written(self):
        self.target.write_bytes(b"old")
        (self.folder / "link").symlink_to("q.pt")
        (self.folder / "dangling").symlink_to("p.pt")
        for link in ("link", "dangling"):
            self.export(target=self.folder / link)
            self.assertTrue((self.folder / link).is_symlink())
        self.assertEqual([b"new", b"new"], [self.target.read_bytes(), (self.folder / "p.pt").read_bytes()])
        self.assertEqual({"q.pt", "p.pt", "link", "dangling"}, self.names())

    def test_files_beside_it_stay_as_they_are(self):
        mine = self.folder / "q.pt.next"
        mine.write_bytes(b"mine")
        self.export()
        self.assertEqual(b"mine", mine.read_bytes())
        self.assertEqual({"q.pt", "q.pt.next"}, self.names())
        mask = os.umask(0o077)
        os.umask(mask)
        self.assertEqual(0o666 & ~mask, self.target.stat().st_mode & 0o777)

    def test_what_was_there_stays_when_it_fails(self):
        self.target.write_bytes(b"old")
        for error, told in ((OSError(28, "No space left on device"), _convert.ConvertError), (KeyboardInterrupt(), KeyboardInterrupt)):

            def save(value, file):
                file.write(b"half")
                raise error

            self.assertRaises(told, self.export, save)
            self.assertEqual((b"old", {"q.pt"}), (self.target.read_bytes(), self.names()))

    def killed(self, number):
        """Exit status of an export that this signal struck as it wrote."""
        program = ("import os, sys; from lockstep import _convert\n"
                   "def save(value, file): file.write(b'half'); file.flush(); os.kill(os.getpid(), int(sys.argv[3]))\n"
                   "_convert.save = save; _convert.end_by_exception(); _convert.export(sys.argv[1], sys.argv[2])\n")
        command = [sys.executable, "-B", "-c", program, str(self.folder), str(self.target), str(int(number))]
        python = os.path.dirname(os.path.dirname(_convert.__file__))
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": python}, timeout=50, check=False).returncode

    def test_one_that_is_told_to_end_leaves_nothing(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            self.assertEqual(128 + number, self.killed(number))
            self.assertEqual(set(), self.names())

    def test_what_a_killed_one_left_goes_with_the_next(self):
        left = self.folder / ".q.pt.lockstep-unfinished"
        for _ in range(2):
            self.assertEqual(-signal.SIGKILL, self.killed(signal.SIGKILL))
            self.assertEqual({left.name}, self.names())
            self.assertEqual(["checkpoint.pt"], os.listdir(left))
        (left / "folder").mkdir()
        (left / "folder" / "file").write_bytes(b"left")
        (left / "link").symlink_to(self.folder)
        self.export()
        self.assertEqual({"q.pt"}, self.names())
        self.assertEqual(b"new", self.target.read_bytes())

    def test_a_second_one_for_the_same_target_is_refused(self):
        def save(value, file):
            file.write(b"first")
            with self.assertRaisesRegex(_convert.ConvertError, r"/\.q\.pt\.lockstep-unfinished is of another export or import of .*/q\.pt, which is under way"):
                self.export()

        self.export(save)
        self.assertEqual((b"first", {"q.pt"}), (self.target.read_bytes(), self.names()))

    def test_no_file_takes_the_place_of_a_device(self):
        """Only asked where it would be put: nothing is written."""
        os.mkfifo(self.target)
        for target in ("/dev/stdout", "/dev/null", "/dev/not/there.pt", "/proc/self/fd/1", "/sys/q.pt", str(self.target), str(self.folder)):
            with self.assertRaisesRegex(_convert.ConvertError, f"^{target} is no place for a regular file; name another one to write$"):
                _convert.file_of(target)
        (self.folder / "link").symlink_to("/dev/null")
        self.assertRaises(_convert.ConvertError, _convert.file_of, str(self.folder / "link"))
        self.assertEqual("/dev/shm/not/there.pt", _convert.file_of("/dev/shm/not/there.pt"))


if __name__ == "__main__":
    unittest.main()
