"""A script may set what libraries read at their import, as in os.environ["OMP_SCHEDULE"] = "static" above `import torch`. A fork of the
zygote has imported torch before; so the worker then starts anew by exec, in the same process, with what the script has set. A number of
threads needs no new start: it is set at once. Once the script uses torch, what is set comes too late by exec, too: from then on nothing
begins anew.
"""

import os
import sys
import types

# By the C library and the interpreter; a script is too late for them. What begins so, and what is called so.
_READ_AT_START, _NAMES_READ_AT_START = (b"LD_", b"GLIBC_", b"MALLOC_", b"PYTHON", b"LC_"), (b"LANG", b"LANGUAGE", b"TZ", b"TZDIR")
_READ_AT_IMPORT = (b"TORCH", b"PYTORCH", b"OMP_", b"GOMP_", b"KMP_", b"MKL_", b"OPENBLAS_")
_READ_AT_USE = (b"TORCH_NCCL_", b"TORCHELASTIC_", b"TORCHINDUCTOR_", b"TORCH_WARM_POOL", b"TORCH_CUDA_ARCH_LIST", b"TORCH_EXTENSIONS_DIR", b"TORCH_HOME",
                b"PYTORCH_CUDA_ALLOC_CONF", b"PYTORCH_HIP_ALLOC_CONF", b"PYTORCH_ALLOC_CONF")

_HERE = os.path.dirname(__file__)
_REMOVED = b"LOCKSTEP_REMOVED_VARIABLE"


def hide_removed():
    """Call in a worker that began anew: libraries do not see what its script will remove from os.environ."""
    name = os.environb.pop(_REMOVED, None)
    if name is not None:
        os.unsetenv(name)


def came_too_late(names, set_in_place):
    """Of the variables that this fork was given, one that was read before, when Python started or torch was imported; None: there is none.
    set_in_place: as in watch()."""
    for name in names:
        if os.fsencode(name).startswith(_READ_AT_START) or os.fsencode(name) in _NAMES_READ_AT_START:
            return name
        if _is_read_at_import(os.fsencode(name)) and not set_in_place(name, os.environ.get(name)):
            return name
    return None


def _is_read_at_import(name):
    return name.startswith(_READ_AT_IMPORT) and not name.startswith(_READ_AT_USE)


def watch(command, preload, set_in_place):
    """Call in a forked worker, before the script runs. command: what exec would have run; preload: LD_PRELOAD for it, or "". set_in_place(name,
    value or None): whether it gave this process what the variable, or its absence, would have."""
    set_in_process, unset_in_process, worker, imported_before = os.putenv, os.unsetenv, os.getpid(), set(sys.modules)
    began_with, began_in = os.environb.copy(), os.getcwd()  # the script repeats what it has changed since

    def putenv(name, value):
        name, value = os.fsencode(name), os.fsencode(value)
        before = os.environb.get(name)
        set_in_process(name, value)
        changed(name, before, value, sys._getframe(1))

    def unsetenv(name):
        name = os.fsencode(name)
        before = os.environb.get(name)
        unset_in_process(name)
        changed(name, before, None, sys._getframe(1))

    def changed(name, before, value, frame):
        if not _is_read_at_import(name) or value == before or os.getpid() != worker:
            return
        if _uses_torch(imported_before, frame):
            os.putenv, os.unsetenv = set_in_process, unset_in_process
        elif set_in_place(os.fsdecode(name), None if value is None else os.fsdecode(value)):
            return
        elif value is not None:
            begin(command, {**began_with, name: value}, began_in, preload, f"the script sets {os.fsdecode(name)}, which torch reads at its import")
        else:  # which it does again, and may count on having
            begin(command, {**began_with, _REMOVED: name}, began_in, preload, f"the script removes {os.fsdecode(name)}, which torch reads at its import")

    os.putenv, os.unsetenv = putenv, unsetenv  # os.environ looks them up with each change


def _uses_torch(imported_before, frame):
    """Whether torch has a name in the script, in a module that it has imported, or in a function that runs; or runs itself."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return True
    except Exception:
        pass  # of another version
    while frame is not None and os.path.dirname(frame.f_code.co_filename) != _HERE:  # those below are the zygote's
        if _is_of_torch(frame.f_globals.get("__name__")) or _names_torch(frame.f_locals):
            return True
        frame = frame.f_back
    for name, module in list(sys.modules.items()):
        if name != "__main__" and name in imported_before:
            continue
        if _is_of_torch(name) or _names_torch(getattr(module, "__dict__", {})):
            return True
    return False


def _names_torch(names):
    for value in list(names.values()):
        try:
            home = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        except Exception:
            continue
        if _is_of_torch(home):
            return True
    return False


def _is_of_torch(module):
    return isinstance(module, str) and module.split(".")[0] == "torch"


def begin(command, environment, folder, preload, why):
    """Anew, by exec, with this environment, in this folder. Returns where that can't be."""
    _say(f"{why}: workers begin anew by exec")
    if preload:
        environment = {**environment, b"LD_PRELOAD": os.fsencode(preload)}
    sys.stdout.flush()
    here = os.open(".", os.O_PATH)
    try:
        os.chdir(folder)
        os.execve(command[0], command, environment)
    except OSError as error:
        _say(f"that can't be ({error}): they go on without")  # as the script would have
        os.fchdir(here)
        os.close(here)


def _say(line):
    if os.environ.get("LOCAL_RANK") == "0":
        print(f"lockstep: {line}", file=sys.stderr, flush=True)
