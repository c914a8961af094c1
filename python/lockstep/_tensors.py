"""Tensors as bytes: how one lies in memory, which part of a sharded one is here, and how it comes back."""
import itertools
import pickle

import torch

PLAIN = (torch.Tensor, torch.nn.Parameter)


class CheckpointError(Exception):
    """A checkpoint can't be taken or loaded; the text says what, where, what was expected and what to do."""


def unpickled(rest, origin):
    """What a script gave beside its tensors, by classes of its own perhaps."""
    try:
        return pickle.loads(rest)
    except Exception as error:  # a class's own constructor may raise anything
        raise CheckpointError(f"{origin} has something that this script can't make again ({type(error).__name__}: {error}): restore with the script that "
                              "wrote it, or start the run afresh") from error


def is_tensor(value):
    return isinstance(value, torch.Tensor) or hasattr(value, "local_shards")


def parts(tensor):
    """The plain tensors of this process that make up `tensor`, each with its place in the whole (None: it is the whole).

    DTensor (torch 2) and ShardedTensor (torch 1.13) are known by their attributes: neither exists in all versions.
    """
    if type(tensor) in PLAIN:
        return [(None, tensor)]
    if hasattr(tensor, "_local_tensor") and hasattr(tensor, "placements"):
        return [(_mesh_place(tensor), tensor._local_tensor)]
    if hasattr(tensor, "local_shards"):
        return [(_shard_place(tensor, shard), shard.tensor) for shard in tensor.local_shards()]
    return [(None, tensor)]


def _mesh_place(tensor):
    mesh = getattr(tensor, "device_mesh", None)
    place = ("dtensor", tuple(tensor.shape), str(tuple(tensor.placements)), tuple(getattr(mesh, "shape", ()) or ()))
    return (*place, tuple(mesh.get_coordinate() or ())) if hasattr(mesh, "get_coordinate") else place  # (): this rank is not in the mesh


def same_place(one, other):
    """Older checkpoints don't say where in its mesh a DTensor's rank stood."""
    if one is None or other is None or len(one) == len(other):
        return one == other
    return one[:4] == other[:4] and one[0] == "dtensor"


def _shard_place(tensor, shard):
    place = shard.metadata
    return ("shard", tuple(tensor.size()), tuple(place.shard_offsets), tuple(place.shard_sizes))


class Layout:
    """What must be equal for bytes to be this tensor again. `strides` is None for a contiguous one, `index` on the CPU and in older checkpoints."""

    __slots__ = ("name", "dtype", "shape", "strides", "place", "device", "size", "index")  # the order in which they are saved

    def __init__(self, name, tensor, place):
        if tensor.layout is not torch.strided or tensor.is_quantized or getattr(tensor, "is_nested", False):
            raise CheckpointError(f"{name}: a {_kind_of(tensor)} can't be checkpointed, only dense ones can: "
                                  "give Checkpoint an object whose state_dict() holds it in dense form")
        if tensor.device.type not in ("cpu", "cuda"):
            raise CheckpointError(f"{name}: a tensor on {tensor.device} can't be checkpointed, only those on cpu and cuda can: "
                                  "give Checkpoint an object whose state_dict() holds it there")
        if torch.nn.parameter.is_lazy(tensor):
            raise CheckpointError(f"{name} is not made yet, and so can't be checkpointed: run a forward pass before the first step()")
        if not _is_readable(tensor):
            raise CheckpointError(f"{name}: a {type(tensor).__name__} of shape {tuple(tensor.shape)} whose memory is not here can't be checkpointed. It is a "
                                  "wrapper around other tensors, as quantized weights are, or its storage was freed: give Checkpoint an object whose "
                                  "state_dict() has what is in it as plain tensors, or leave it out if the script makes it alike at every start")
        self.name = name
        self.dtype = str(tensor.dtype)[len("torch."):]
        self.shape = tuple(tensor.shape)
        self.strides = None if tensor.is_contiguous() else _dense_strides(tensor)
        self.place = place
        self.device = tensor.device.type
        self.size = tensor.numel() * tensor.element_size()
        self.index = tensor.device.index

    def as_tuple(self):
        return tuple(getattr(self, field) for field in self.__slots__)

    @classmethod
    def from_tuple(cls, values):
        layout = cls.__new__(cls)
        for field, value in itertools.zip_longest(cls.__slots__, values[: len(cls.__slots__)]):
            setattr(layout, field, value)
        return layout

    def same_content(self, other):
        """Equal in what restoring needs; where it lies (device, strides) may differ."""
        return (self.dtype, self.shape) == (other.dtype, other.shape) and same_place(self.place, other.place)

    def __str__(self):
        text = f"{self.dtype} of shape {self.shape}"
        return text if self.place is None else f"{text}, {self.place[0]} at {self.place[1:]}"


def _is_readable(tensor):
    """Whether its elements are where it says. One of a wrapper is at address 0, and a storage may be resized under its tensor."""
    if tensor.numel() == 0:
        return True
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr() != 0 and (tensor.storage_offset() + last + 1) * tensor.element_size() <= _storage_size(tensor)


def overlaps(tensor):
    """Whether several of its elements are one in memory, as after expand(): torch refuses to write it."""
    return tensor.layout is torch.strided and any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride()))


def check_writable(name, tensor):
    if not torch.nn.parameter.is_lazy(tensor) and any(overlaps(part) for _, part in parts(tensor)):
        raise CheckpointError(f"{name}: several elements of a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} are one in memory, as after "
                              "expand(), so that no restart can write it: give it memory of its own with clone()")


def _storage_size(tensor):
    """In bytes. torch 1.13 has no other way to ask, and later ones warn of it."""
    return tensor.untyped_storage().nbytes() if hasattr(tensor, "untyped_storage") else tensor.storage().nbytes()


def _kind_of(tensor):
    if tensor.layout is not torch.strided:
        return f"tensor of layout {tensor.layout}"
    return "quantized tensor" if tensor.is_quantized else "nested tensor"


def _dense_strides(tensor):
    """The strides if the elements fill their memory without gaps or overlaps (channels_last, a transpose); else None."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size == 1:
            continue
        if stride != expected:
            return None
        expected *= size
    return tuple(tensor.stride())


# As safetensors names them. What it does not know goes as bytes, U8, and the table says what they are.
DTYPES = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32", "int64": "I64",
          "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "complex64": "C64",
          "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


def table(layouts):
    """The tensors for readers without pickle (docs/formats/board.md), in the order of the bytes."""
    taken, entries, offset = {"__metadata__"}, [], 0
    for layout in layouts:
        offset = align(offset)
        entries.append({"name": _unique(_utf8(layout.name), taken), "offset": offset, "bytes": layout.size, **_type_of(layout)})
        offset += layout.size
    return entries


def _utf8(name):
    """What no UTF-8 can say, half of a surrogate pair as os.listdir() gives, by its escape: a reader of JSON takes nothing of a table with it."""
    return name.encode("utf-8", "backslashreplace").decode()


def _unique(name, taken):
    """Several shards of one tensor have one name; in a file each needs its own."""
    number, found = 2, name
    while found in taken:
        found, number = f"{name}#{number}", number + 1
    taken.add(found)
    return found


def _type_of(layout):
    """dtype and shape as a C-ordered reader sees the bytes; "torch" where the tensor itself is another."""
    dtype, shape = DTYPES.get(layout.dtype), list(layout.shape)
    if dtype is None:
        dtype, seen = "U8", [layout.size]
    elif layout.strides is None:
        seen = shape
    else:
        seen = [size for _, _, size in sorted(zip(layout.strides, range(len(shape)), shape), reverse=True)]
    if dtype == DTYPES.get(layout.dtype) and layout.strides is None:
        return {"dtype": dtype, "shape": seen}
    strides = None if layout.strides is None else list(layout.strides)
    return {"dtype": dtype, "shape": seen, "torch": {"dtype": layout.dtype, "shape": shape, "strides": strides}}


def as_bytes(tensor, layout):
    """A tensor whose memory, from data_ptr() on, is what `layout` says; it keeps the memory alive."""
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor if tensor.is_contiguous() or layout.strides is not None else tensor.contiguous()


def needs_gathering(tensor, layout):
    """The bytes aren't in one piece (or not what they mean), so each copy begins with a new tensor. Of complex ones .data may be conjugated in place."""
    return (not tensor.is_contiguous() and layout.strides is None) or tensor.is_complex() or tensor.is_neg()


def align(offset):
    """Tensors lie at multiples of 64 (LS_TENSOR_ALIGN)."""
    return (offset + 63) // 64 * 64


def views(layouts, buffer):
    """Pairs (layout, tensor over its bytes in `buffer`), for layouts in the order in which they were saved."""
    offset, found = 0, []
    for layout in layouts:
        offset = align(offset)
        found.append((layout, _view(layout, buffer, offset)))
        offset += layout.size
    return found


def _view(layout, buffer, offset):
    dtype = getattr(torch, layout.dtype)
    if layout.size == 0:
        return torch.empty(layout.shape, dtype=dtype)
    if offset + layout.size > len(buffer):
        raise CheckpointError(f"{layout.name}: the checkpoint ends before this tensor: it was written by another version of Lockstep")
    count = layout.size // torch.empty(0, dtype=dtype).element_size()
    flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset)
    return flat.view(layout.shape) if layout.strides is None else flat.as_strided(layout.shape, layout.strides)
