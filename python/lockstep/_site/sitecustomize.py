"""Found first on a worker's PYTHONPATH (exec start): prepares the worker, then makes way for the user's own sitecustomize."""

import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _chain():
    """Runs the sitecustomize that this one hides, if there is one, as site.py would have."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
    own = sys.modules.pop("sitecustomize", None)
    spec = importlib.util.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
    elif own is not None:
        sys.modules["sitecustomize"] = own  # the import of it looks there when it is done


# Children of a worker inherit PYTHONPATH but are not workers: the pid tells them apart.
if os.environ.get("LOCKSTEP_WORKER_PID") == str(os.getpid()):
    try:
        from lockstep._boot import prepare_worker

        prepare_worker()
    except Exception as error:  # the job must start even so
        sys.stderr.write(f"lockstep: worker starts without stacks and error notes: {error!r}\n")
_chain()
