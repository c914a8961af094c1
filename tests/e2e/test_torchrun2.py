"""torchrun's command line under Debian 13's torch 2.6 and Python 3.13, whose torchrun it is compared with."""
import unittest

import test_torchrun
from test_torch2 import PYTHON2, setUpModule  # noqa: F401: unittest calls it


class Environment(test_torchrun.Environment):
    python = PYTHON2
    BY_FORM = test_torchrun.Environment.BY_FORM | {"PWD"}  # the shell that is this python sets it
    OTHERWISE = {"TORCHELASTIC_USE_AGENT_STORE": "False", "USE_LIBUV": "0"}  # this torch can't join a store of somebody else


class CommandLines(test_torchrun.CommandLines):
    python = PYTHON2


class Elastic(test_torchrun.Elastic):
    python = PYTHON2


class Recorded(test_torchrun.Recorded):
    python = PYTHON2


class Logs(test_torchrun.Logs):
    python = PYTHON2


if __name__ == "__main__":
    unittest.main()
