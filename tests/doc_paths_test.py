"""What the documents name exists: the files that links lead to, and the sources in backticks, each by its path or the end of that."""

import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("bench", "cmake", "docs", "examples", "lockstep", "packaging", "presets", "python", "tests")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
SOURCE = re.compile(r"(?:[\w.-]+/)*\w[\w.-]*\.(?:cc|h|c|py|cmake|md)")
OF_OTHERS = {"x_test.cc", "_test.cc", "train.py", "mappings.py", "torch/utils/data/_utils/worker.py"}  # examples, Megatron's, torch's


def missing(root):
    files = [path.relative_to(root) for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file()]
    ends = {"/".join(path.parts[first:]) for path in files for first in range(len(path.parts))} | {path.name for path in root.glob("*.md")}
    for page in [*root.glob("*.md"), *(root / path for path in files if path.suffix == ".md")]:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for link in LINK.findall(line):
                if not (page.parent / link).exists():
                    yield f"{page.relative_to(root)}:{number}: a link to {link}"
            for quoted in re.findall("`([^`]+)`", line):
                for word in filter(SOURCE.fullmatch, quoted.split()):
                    if word not in ends | OF_OTHERS:
                        yield f"{page.relative_to(root)}:{number}: {word}"


class DocPaths(unittest.TestCase):
    def test_all_exist(self):
        self.assertEqual([], list(missing(ROOT)))

    def test_sees_what_does_not(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "lockstep/cost").mkdir(parents=True)
            (root / "lockstep/cost/standby.cc").touch()
            (root / "README.md").write_text("`cost/standby.cc`, `lockstep/cost/standby.cc`, [it](lockstep/cost) and [that](http://127.0.0.1/x)\n"
                                            "`lockstep/cost/gone.cc --flag`, `standby.h`, [it](docs/gone.md#here)\n")
            self.assertEqual({"README.md:2: lockstep/cost/gone.cc", "README.md:2: standby.h", "README.md:2: a link to docs/gone.md"}, set(missing(root)))


if __name__ == "__main__":
    unittest.main()
