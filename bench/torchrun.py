"""torchrun of torch 1.13 on Python 3.11, where it fails at every start: Std.from_str("0") looks for 0 among the flags, and
iterating over them leaves 0 out since Python 3.11. With that one function mended, it is torchrun as it ships.
"""
from torch.distributed.elastic.multiprocessing import api
from torch.distributed.run import main

shipped = api.Std.from_str.__func__


def from_str(kind, text):
    if text.isdigit():
        return api.Std(int(text))
    return shipped(kind, text)


api.Std.from_str = classmethod(from_str)

if __name__ == "__main__":
    main()
