"""The console command `lockstep` of the wheel: becomes the binary that the wheel carries."""
import os
import sys


def main():
    binary = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_install", "bin", "lockstep")
    # As torchrun does: scripts run in the Python whose command was called, whether its environment is active or not.
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    os.execv(binary, [binary, *sys.argv[1:]])
