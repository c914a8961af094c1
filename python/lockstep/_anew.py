"""A script may set what libraries read at their import, as in os.environ["OMP_NUM_THREADS"] = "8" above `import torch`. A fork of the
zygote has imported torch before; so the worker then starts anew by exec, in the same process, with what the script has set.
"""

import os
import sys
import types

_READ_AT_IMPORT = (b"TORCH", b"PYTORCH", b"OMP_", b"GOMP_", b"KMP_", b"MKL_", b"OPENBLAS_")
_READ_AT_USE = (b"TORCH_NCCL_", b"TORCHELASTIC_", b"PYTORCH_CUDA_ALLOC_CONF", b"PYTORCH_HIP_ALLOC_CONF", b"PYTORCH_ALLOC_CONF")


def watch(command, preload):
    """Call in a forked worker, before the script runs. command: what exec would have run; preload: LD_PRELOAD for it, or ""."""
    set_in_process, worker = os.putenv, os.getpid()

    def putenv(name, value):
        name, value = os.fsencode(name), os.fsencode(value)
        before = os.environb.get(name)
        set_in_process(name, value)
        comes_late = name.startswith(_READ_AT_IMPORT) and not name.startswith(_READ_AT_USE) and value != before
        if comes_late and os.getpid() == worker and not _script_has_torch():
            _begin(command, preload, os.fsdecode(name), set_in_process)

    os.putenv = putenv  # os.environ looks it up with each assignment


def _script_has_torch():
    """Whether something of torch has a name in the script: what is set now came too late by exec, too."""
    for value in list(vars(sys.modules["__main__"]).values()):
        try:
            home = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        except Exception:
            continue
        if isinstance(home, str) and home.split(".")[0] == "torch":
            return True
    return False


def _begin(command, preload, name, set_in_process):
    if os.environ.get("LOCAL_RANK") == "0":
        print(f"lockstep: the script sets {name}, which torch reads at its import: workers begin anew by exec", file=sys.stderr, flush=True)
    if preload:
        set_in_process("LD_PRELOAD", preload)
    sys.stdout.flush()
    try:
        os.execv(command[0], command)
    except OSError:
        pass  # the script goes on without its setting, as it would have
