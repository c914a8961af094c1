"""Hosts the rendezvous store outside the ranks: one torch TCPStore at a time, a fresh one on a fresh port for each epoch.

Runs in a process of its own (forked from the zygote, or `python -m lockstep._store`), so that no rank's death takes the store away.
Requests: {"op": "store", "epoch", "world_size"}; answers {"event": "store", "epoch", "port"} or {"event": "store", "epoch", "error"}.
"""

import sys

from lockstep import _packets


def serve(sock):
    store = None
    while True:
        request, _ = _packets.receive(sock)
        if request is None:
            return 0
        store = None  # closes the one before: its epoch is over
        try:
            from torch.distributed import TCPStore

            store = TCPStore("127.0.0.1", 0, request["world_size"], True, wait_for_workers=False)
            _packets.send(sock, event="store", epoch=request["epoch"], port=store.port)
        except Exception as error:
            _packets.send(sock, event="store", epoch=request["epoch"], error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(serve(_packets.starter_socket()))
