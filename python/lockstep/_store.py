"""Hosts the rendezvous store outside the ranks: one torch TCPStore at a time, a fresh one on a fresh port for each epoch.

Runs in a process of its own (forked from the zygote, or `python -m lockstep._store`), so that no rank's death takes the store away.
Requests: {"op": "store", "epoch", "world_size", "host", "port"}, port 0 for any; answers {"event": "store", "epoch", "port", "torch",
"refused"} or {"event": "store", "epoch", "error"}, with "torch" where there is one. The port that was asked for may be taken: then `refused` says why, and `port` is another one.
"""

import sys

from lockstep import _packets


def serve(sock):
    store = None
    while True:
        request, _ = _packets.receive(sock)
        if request is None:
            return 0
        store, about = None, {}  # closes the one before: its epoch is over
        try:
            import torch

            about = {"torch": torch.__version__}
            store, refused = _listen(request)
            _packets.send(sock, event="store", epoch=request["epoch"], port=store.port, refused=refused, **about)
        except Exception as error:
            _packets.send(sock, event="store", epoch=request["epoch"], error=f"{type(error).__name__}: {error}", **about)


def _listen(request):
    """The store at the port that was asked for, or at a free one with what was wrong with the other."""
    from torch.distributed import TCPStore

    def listen(port):
        return TCPStore(request["host"], port, request["world_size"], True, wait_for_workers=False)

    try:
        return listen(request["port"]), ""
    except RuntimeError as error:
        if request["port"] == 0:
            raise
        return listen(0), str(error).splitlines()[0]


if __name__ == "__main__":
    sys.exit(serve(_packets.starter_socket()))
