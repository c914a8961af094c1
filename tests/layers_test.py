"""The layer check itself: it passes on this tree, and it sees an include that goes up."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import layers

ROOT = pathlib.Path(__file__).resolve().parent.parent


class LayersTest(unittest.TestCase):
    def test_this_tree_is_clean(self):
        self.assertEqual(list(layers.violations(ROOT)), [])

    def test_sees_an_include_upwards_and_sideways(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for number, part in enumerate(["base", "record", "client", "graph", "control", "cli"]):
                (root / "lockstep" / part).mkdir(parents=True)
                (root / "lockstep" / part / "CMakeLists.txt").write_text(f"lockstep_part({part} NUMBER {number})")
            (root / "lockstep/base/x.h").write_text('#include "lockstep/cli/commands.h"\n#include "lockstep/base/y.h"\n')
            (root / "lockstep/cli/x.h").write_text('#include "lockstep/base/x.h"\n')
            found = list(layers.violations(root))
            self.assertEqual(len(found), 1, found)
            self.assertIn("lockstep/base/x.h:1: base (0) may not include cli (5)", found[0])


if __name__ == "__main__":
    unittest.main()
