"""@lockstep.restartable under Debian 13's torch 2.6, whose gloo throws where the one of torch 1.13 shrugs."""
import unittest

import test_restartable
from test_torch2 import PYTHON2, setUpModule  # noqa: F401: unittest calls it


class Restartable(test_restartable.Restartable):
    python = PYTHON2


if __name__ == "__main__":
    unittest.main()
