"""A folder of torch.distributed.checkpoint takes the place of the one before: whatever happens meanwhile, one of them is there. Without torch."""
import contextlib
import os
import pathlib
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
        return {path.name: (path / ".metadata").read_text() for path in self.folder.iterdir() if not path.name.startswith("tmp")}

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


if __name__ == "__main__":
    unittest.main()
