"""torchrun, mended where it fails at every start; otherwise it is torchrun as it ships.

torch 1.13 on Python 3.11: Std.from_str("0") looks for 0 among the flags, and iterating over them leaves 0 out since Python 3.11.
Debian 13's torch 2.6: built without libuv, which its stores ask for unless told otherwise.
"""
import functools

from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.rendezvous import static_tcp_rendezvous
from torch.distributed.run import main

shipped = api.Std.from_str.__func__


def from_str(kind, text):
    if text.isdigit():
        return api.Std(int(text))
    return shipped(kind, text)


api.Std.from_str = classmethod(from_str)
if "use_libuv" in (static_tcp_rendezvous.TCPStore.__init__.__doc__ or ""):
    static_tcp_rendezvous.TCPStore = functools.partial(static_tcp_rendezvous.TCPStore, use_libuv=False)

if __name__ == "__main__":
    main()
