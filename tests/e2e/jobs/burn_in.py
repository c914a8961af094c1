"""A script for `lockstep replay` that reports no values: it dies on the machine of that number, and with "ask" it calls lockstep.replay() and no more."""
import json
import os
import signal
import sys

import lockstep

if sys.argv[1:] == ["ask"]:
    lockstep.replay()
elif sys.argv[1:] == [str(json.loads(os.environ["LOCKSTEP_REPLAY"])["machine"])]:
    os.kill(os.getpid(), signal.SIGKILL)
