"""Another version of the code than the run began with (`lockstep update --code`): what was in one directory is to be found in another.

    python -m lockstep._version DIRECTORY MODULE ARGUMENTS...      as `python -m MODULE ARGUMENTS...` with DIRECTORY as the working one
"""

import os
import sys


def move(old, new):
    """In a fork of the zygote, before the script runs: nothing is imported, or was imported, from `old`."""
    sys.path[:] = [_moved(entry, old, new) for entry in sys.path]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and _moved(file, old, new) != file and not file.startswith(os.path.join(new, "")):
            del sys.modules[name]


def _moved(path, old, new):
    return new + path[len(old) :] if path == old or path.startswith(os.path.join(old, "")) else path


def main():
    import runpy

    _, directory, module, *arguments = sys.argv
    sys.path[0] = directory
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
