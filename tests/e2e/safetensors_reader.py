"""A reader of the safetensors format, from the public description of the format alone: strict, and without any code of Lockstep."""
import json
import struct

import torch

TYPES = {"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
         "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64}


def no_duplicates(pairs):
    names = [name for name, _ in pairs]
    if len(names) != len(set(names)):
        raise ValueError("a key comes twice")
    return dict(pairs)


def read(path):
    """({name: tensor}, metadata). Raises ValueError for whatever the format forbids."""
    with open(path, "rb") as file:
        content = file.read()
    size, = struct.unpack_from("<Q", content)
    if size > 100_000_000 or size > len(content) - 8 or content[8:9] != b"{":
        raise ValueError("bad header")
    header = json.loads(content[8 : 8 + size].decode("utf-8"), object_pairs_hook=no_duplicates)
    metadata = header.pop("__metadata__", {})
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata is strings only")
    data, end, tensors = content[8 + size :], 0, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        if begin != end:
            raise ValueError(f"{name}: a hole or an overlap at {begin}")
        tensors[name] = view(name, entry, data[begin:stop], 8 + size + begin)
        end = stop
    if end != len(data):
        raise ValueError("bytes behind the last tensor")
    return tensors, metadata


def view(name, entry, part, offset):
    dtype = TYPES[entry["dtype"]]
    width = torch.empty(0, dtype=dtype).element_size()
    count = 1
    for length in entry["shape"]:
        count *= length
    if len(part) != count * width:
        raise ValueError(f"{name}: {len(part)} bytes for {count} x {width}")
    if offset % width:
        raise ValueError(f"{name}: not aligned, so that it can't be mapped")
    if not part:
        return torch.empty(entry["shape"], dtype=dtype)
    return torch.frombuffer(bytearray(part), dtype=dtype).view(entry["shape"])
