"""Another version of the code than the run began with (`lockstep update --code`): what was in one directory is to be found in another.

    python -m lockstep._version DIRECTORY MODULE ARGUMENTS...      as `python -m MODULE ARGUMENTS...` with DIRECTORY as the working one
"""

import os
import sys

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def move(old, new):
    """In a fork of the zygote, before the script runs: nothing is imported, or was imported, from `old` that is in `new` too. What a version
    lacks, such as a virtual environment, stays where it is; so do we.
    """
    sys.path[:] = [_moved(entry, old, new) for entry in sys.path]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and _moved(file, old, new) != file and name.split(".")[0] != "lockstep":
            del sys.modules[name]


def _moved(path, old, new):
    inside = path == old or path.startswith(os.path.join(old, ""))
    if not inside or path == _OURS or path.startswith(os.path.join(new, "")):
        return path
    moved = new + path[len(old) :]
    return moved if os.path.exists(moved) else path


def main():
    import runpy

    _, directory, module, *arguments = sys.argv
    sys.path[0] = directory
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
