"""Checkpoints on disk to torch's formats and back: what `lockstep checkpoint export` and `import` run, under the user's Python.

usage: _convert.py export CHECKPOINT torch|dcp FILE CLIENT_LIBRARY
       _convert.py import DIRECTORY torch|dcp FILE CLIENT_LIBRARY

CHECKPOINT is one that was verified, DIRECTORY the --checkpoint-dir in which the new one is to be the newest.
docs/formats/checkpoint.md says what the files hold.
"""
import base64
import contextlib
import copy
import ctypes
import fcntl
import functools
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import signal
import struct
import sys
import time
import zipfile

DTYPES = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32", "I64": "int64",
          "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
          "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
ALIGN = 64
PIECE = 4 << 20
WORDS = ("replica", "cut")  # what the script said of worlds of another size, by rank


class ConvertError(Exception):
    """What is wrong, where, what was expected, what to do."""


def file_of(target):
    """Where a rename puts the new file: a link leads there, and stays. In a device's place none may be put."""
    real = os.path.realpath(target)
    if any(is_of_the_system(path) for path in (os.path.abspath(target), real)) or (os.path.lexists(real) and not os.path.isfile(real)):
        raise ConvertError(f"{target} is no place for a regular file; name another one to write")
    return real


def is_of_the_system(path):
    return path.startswith(("/dev/", "/proc/", "/sys/")) and not path.startswith("/dev/shm/")


def export(checkpoint, target):
    real = file_of(target)
    with open(os.path.join(checkpoint, "manifest.json")) as file:
        manifest = json.load(file)
    ranks = {str(entry["rank"]): {**read_rank(os.path.join(checkpoint, entry["name"])), **having(entry, WORDS)} for entry in manifest["files"]}
    # In one rename: what was there before stays until all of the new one is on disk.
    try:
        with folder_beside(real) as folder:
            made = os.path.join(folder, "checkpoint.pt")
            with open(made, "wb") as file:
                save({**having(manifest, ("step", "epoch", "world_size", "layout")), "ranks": ranks}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(made, real)
    except OSError as error:
        raise ConvertError(f"{target}: {error.strerror}") from error


@contextlib.contextmanager
def folder_beside(target):
    """Where what is to take the target's place is made. Of one name for each target: so the next one finds what a killed one has left, and removes it."""
    place, name = os.path.split(os.path.abspath(target))
    folder = os.path.join(place, f".{name}.lockstep-unfinished")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not is_ours(folder, lock):
            raise ConvertError(f"{folder} is of another export or import of {target}, which is under way: wait for its end")
        try:
            empty(folder)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def is_ours(folder, lock):
    """From now on: the kernel takes the lock from who is killed. False, too, where another one has removed the folder meanwhile."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # of a directory not every file system has locks
    return os.path.samestat(os.fstat(lock), os.stat(folder))


def empty(folder):
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def having(entries, keys):
    return {key: entries[key] for key in keys if key in entries}


class Lying:
    """A tensor that is not in memory: read(buffer) yields its bytes by pieces, which lie in the buffer until the next is asked for."""

    def __init__(self, read, size, dtype, shape, strides=None):
        self.read, self.size, self.dtype, self.shape, self.strides = read, size, dtype, shape, strides


def read_bytes(path, begin, size, buffer):
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(begin)
            while size:
                count = file.readinto(buffer[:size])
                if not count:
                    raise ConvertError(f"{path} was cut short after it had been verified: {size} bytes of a tensor are missing")
                yield buffer[:count]
                size -= count
    except OSError as error:  # of readinto() it names no file
        raise ConvertError(f"{path}: {error.strerror}") from error


class Stored:
    """What a file of torch.save names a tensor's memory by."""

    def __init__(self, name):
        self.name = name


class Dissection(pickle.Unpickler):
    """Of a tensor that torch.save wrote: what rebuilds it, and from which arguments."""

    def persistent_load(self, name):
        return Stored(name)

    def find_class(self, module, name):
        found = super().find_class(module, name)
        return (lambda *given: (found, given)) if module == "torch._utils" else found


@functools.lru_cache(maxsize=None)
def dissected(dtype):
    """(what rebuilds a tensor of this dtype, its arguments): which they are differs between dtypes, and between versions of torch."""
    import torch

    file = io.BytesIO()
    torch.save(torch.empty(1, dtype=dtype), file)
    with zipfile.ZipFile(file) as saved:
        name, = (name for name in saved.namelist() if name.endswith("/data.pkl"))
        return Dissection(io.BytesIO(saved.read(name))).load()


class Pickler(pickle.Pickler):
    """As torch.save pickles. Each tensor's memory goes by its number in `tensors`."""

    def __init__(self, file):
        super().__init__(file, protocol=2)
        self.tensors = []

    def persistent_id(self, value):
        return value.name if isinstance(value, Stored) else None

    def reducer_override(self, value):
        if not isinstance(value, Lying):
            return NotImplemented
        rebuild, (stored, _, _, _, *more) = dissected(value.dtype)
        word, kind, _, device, of_one = stored.name
        name = (word, kind, str(len(self.tensors)), device, value.size // bytes_of_one(value.dtype) * of_one)
        self.tensors.append(value)
        # Each has hooks of its own.
        return rebuild, (Stored(name), 0, tuple(value.shape), tuple(value.strides or in_c_order(value.shape)), *map(copy.copy, more))


def in_c_order(shape):
    strides = [1]
    for length in shape[:0:-1]:
        strides.insert(0, strides[0] * max(length, 1))
    return strides[: len(shape)]


def save(value, file):
    """As torch.save, of tensors that are Lying: of those memory holds one piece, and one file is open at a time."""
    pickled = io.BytesIO()
    pickler = Pickler(pickled)
    pickler.dump(value)
    buffer = memoryview(bytearray(PIECE))
    with zipfile.ZipFile(file, "w") as archive:
        add(archive, "data.pkl", [pickled.getbuffer()])
        add(archive, "byteorder", [sys.byteorder.encode()])
        for number, tensor in enumerate(pickler.tensors):
            add(archive, f"data/{number}", tensor.read(buffer))
        add(archive, "version", [b"3\n"])


def add(archive, name, pieces):
    """Its bytes begin at a multiple of ALIGN, as torch has them, by an extra field of zeros."""
    entry = zipfile.ZipInfo(f"archive/{name}")
    head = 30 + len(entry.filename) + 20  # the last are the sizes in 64 bits
    padding = -(archive.fp.tell() + head + 4) % ALIGN
    entry.extra = struct.pack("<2sH", b"FB", padding) + bytes(padding)
    with archive.open(entry, "w", force_zip64=True) as file:
        for piece in pieces:
            file.write(piece)


def read_rank(path):
    import torch

    with open(path, "rb") as file:
        head, metadata, meta = read_head(file)
        data = file.tell()
    real = json.loads(metadata["lockstep.torch"])
    return {"tensors": {name: find_tensor(path, data, entry, real.get(name)) for name, entry in head.items()},
            "meta": Lying(lambda buffer: [meta], len(meta), torch.uint8, [len(meta)])}


def read_head(file):
    """({name: entry}, metadata, the slot's meta part) of a rank's file, which is left where its tensors begin."""
    size, = struct.unpack("<Q", file.read(8))
    head = json.loads(file.read(size))
    metadata = head.pop("__metadata__")
    return head, metadata, base64.b64decode(metadata["lockstep.meta"])


def find_tensor(path, data, entry, real):
    import torch

    begin, end = entry["data_offsets"]
    dtype = getattr(torch, real["dtype"] if real else DTYPES[entry["dtype"]])
    strides = real["strides"] if real and begin < end else None
    return Lying(functools.partial(read_bytes, path, data + begin, end - begin), end - begin, dtype, real["shape"] if real else entry["shape"], strides)


def import_(directory, source, client):
    import torch

    saved = read_saved(torch, source)
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, ".lock"), "w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConvertError(f"{lock.name} is held by a run, which is writing there: stop it first") from None
        write_checkpoint(directory, saved, client)


def read_saved(torch, source):
    """What export wrote: anything else lacks what a job finds its state by."""
    try:
        saved = torch.load(source, map_location="cpu")
    except (RuntimeError, ValueError, EOFError, OSError, pickle.UnpicklingError) as error:
        if getattr(error, "filename", None):  # it isn't there, or may not be read
            raise
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise ConvertError(f"{source} can't be read as a file of torch.save, it is damaged or another kind of file: {why}") from error
    missing = [key for key in ("step", "world_size", "ranks") if not isinstance(saved, dict) or key not in saved]
    if missing:
        raise ConvertError(f"{source} has no {missing[0]!r}: expected what `lockstep checkpoint export` writes. A file of another origin is for "
                           "`lockstep checkpoint import FILE --out DIR --world N`")
    absent = [rank for rank in range(saved["world_size"]) if str(rank) not in saved["ranks"]]
    if absent:
        raise ConvertError(f"{source} has no rank {absent[0]}, expected {saved['world_size']} of them")
    return saved


def write_checkpoint(directory, saved, client):
    found = [re.fullmatch(r"step_\d{12,}_epoch_(\d+)", name) for name in os.listdir(directory)]
    step, epoch = saved["step"], 1 + max((int(match[1]) for match in found if match), default=0)
    name = f"step_{step:012}_epoch_{epoch}"
    folder = os.path.join(directory, ".incoming_" + name)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        fill(folder, step, epoch, saved, client)
        os.rename(folder, os.path.join(directory, name))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    sync(directory)
    print(f"{directory}/{name} is now the newest checkpoint")


def fill(folder, step, epoch, saved, client):
    os.mkdir(folder, 0o700)
    files = [write_rank(folder, rank, saved["ranks"][str(rank)], client) for rank in range(saved["world_size"])]
    manifest = {**having(saved, ("layout",)), "format": "lockstep checkpoint", "version": 1, "step": step, "epoch": epoch, "world_size": len(files),
                "job": "imported", "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "files": files}
    manifest["crc32c"] = sum_of(manifest, client)
    write(os.path.join(folder, "manifest.json"), [json.dumps(manifest, indent=2).encode()])
    sync(folder)


def sum_of(manifest, client):
    text = json.dumps(manifest, ensure_ascii=False, separators=(",", ":")).encode()
    return client.ls_crc32c(0, text, len(text))


def write_rank(folder, rank, saved, client):
    meta = saved["meta"].numpy().tobytes()
    table = read_table(meta)
    tensors = saved.get("tensors", {})  # torch.distributed.checkpoint keeps no dict that is empty
    if {entry["name"] for entry in table} != tensors.keys():
        other = sorted({entry["name"] for entry in table} ^ tensors.keys())[0]
        raise ConvertError(f"rank {rank}: {other} is either missing or new: names may not change, for the job would not find its state again")
    parts = [bytes_of(entry, tensors[entry["name"]]) for entry in table]
    slot = bytearray(meta)
    for part in parts:
        slot += bytes(-len(slot) % ALIGN) + part
    entries, pieces, at = {}, [], 0
    for entry, part in sorted(zip(table, parts), key=lambda pair: -element_size(pair[0])):
        entries[entry["name"]] = {"dtype": entry["dtype"], "shape": entry["shape"], "data_offsets": [at, at + len(part)]}
        pieces.append(part)
        at += len(part)
    real = {entry["name"]: entry["torch"] for entry in table if "torch" in entry}
    metadata = {"format": "pt", "lockstep.torch": json.dumps(real), "lockstep.meta": base64.b64encode(meta).decode()}
    head = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    name = f"rank_{rank:05}.safetensors"
    size, crc = write(os.path.join(folder, name), [struct.pack("<Q", len(head)), head, *pieces], client)
    of_tensors = hashlib.blake2b(memoryview(slot)[len(meta) + -len(meta) % ALIGN :], digest_size=16).hexdigest()
    return {"rank": rank, "name": name, "bytes": size, "crc32c": crc, "slot_bytes": len(slot), "slot_meta_bytes": len(meta),
            "slot_crc32c": client.ls_crc32c(0, bytes(slot), len(slot)), "tensors": of_tensors, **having(saved, WORDS)}


def read_table(meta):
    size, = struct.unpack_from("<Q", meta)
    return json.loads(meta[8 : 8 + size])


def element_size(entry):
    count = 1
    for length in entry["shape"]:
        count *= length
    if count:
        return entry["bytes"] // count
    import torch

    return bytes_of_one(getattr(torch, DTYPES[entry["dtype"]]))


def bytes_of_one(dtype):
    import torch

    return torch.empty(0, dtype=dtype).element_size()


def bytes_of(entry, tensor):
    """The tensor's bytes as the slot had them; its strides need not be those of the slot."""
    import torch

    real = entry.get("torch") or {"dtype": DTYPES[entry["dtype"]], "shape": entry["shape"], "strides": None}
    if list(tensor.shape) != real["shape"] or str(tensor.dtype) != f"torch.{real['dtype']}":
        raise ConvertError(f"{entry['name']} is {tensor.dtype} of shape {list(tensor.shape)}, expected {real['dtype']} of shape {real['shape']}: "
                           "convert it back, for the job restores into tensors of that kind")
    if tensor.numel() == 0:
        return b""
    laid_out = torch.empty(tensor.numel(), dtype=tensor.dtype)
    laid_out.as_strided(real["shape"], real["strides"] or tensor.contiguous().stride()).copy_(tensor)
    return ctypes.string_at(laid_out.data_ptr(), entry["bytes"])


def write(path, pieces, client=None):
    """(bytes, CRC32C) of the file, which is synced."""
    size = crc = 0
    try:
        with open(path, "xb") as file:
            for piece in pieces:
                file.write(piece)
                size += len(piece)
                crc = client.ls_crc32c(crc, piece, len(piece)) if client else 0
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # of write() it names no file
        raise ConvertError(f"{path}: {error.strerror}") from error
    return size, crc


def sync(path):
    """A file or a folder, without what lies in it."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def load_client(path):
    client = ctypes.CDLL(path)
    client.ls_crc32c.restype, client.ls_crc32c.argtypes = ctypes.c_uint32, [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64]
    return client


def dcp_converter(name):
    try:
        from torch.distributed.checkpoint import format_utils
    except Exception as error:  # 1.13 does not even import under Python 3.11
        import torch

        raise ConvertError(f"torch {torch.__version__} of {sys.executable} has no torch.distributed.checkpoint.format_utils ({error}): use torch 2.2 "
                           "or newer by --python, or the format torch") from error
    from torch.distributed.checkpoint.api import CheckpointException

    def convert(source, target, named):
        try:
            getattr(format_utils, name)(source, target)
        except CheckpointException as error:  # no Exception, and its text is a traceback
            why, _ = next(iter(error.failures.values()))
            raise ConvertError(f"{named}: {str(why) or type(why).__name__}") from error

    return convert


def before_of(target):
    """Where what was there before waits until the new one is in its place."""
    return os.path.abspath(target) + ".before"


def check_folder(target):
    """Only what is of torch.distributed.checkpoint alone makes room, and only by a rename."""
    if os.path.lexists(before_of(target)):
        raise ConvertError(f"{before_of(target)} is there, what {target} was before an export that was killed: rename it back, or remove it")
    if not os.path.lexists(target):
        return
    if os.path.ismount(target):
        raise ConvertError(f"{target} is a mount point, for which nothing can be put by a rename: name a folder in it that is not there")
    found = os.listdir(target) if os.path.isdir(target) else ["no folder"]
    other = [name for name in found if name != ".metadata" and not name.endswith(".distcp")]
    if other:
        raise ConvertError(f"{target} is there and is no folder of torch.distributed.checkpoint alone ({other[0]}): name one that is not there")


def put_folder(made, target):
    """What was there before stays until all of the new one is on disk and in its place, and comes back if it can't be put there."""
    check_folder(target)
    for place, _, names in os.walk(made):
        for name in names:
            sync(os.path.join(place, name))
        sync(place)
    before, target = before_of(target), os.path.abspath(target)
    try:
        if os.path.lexists(target):
            os.rename(target, before)
        os.rename(made, target)
    except BaseException:
        if os.path.lexists(before) and not os.path.lexists(target):
            os.rename(before, target)
        raise
    sync(os.path.dirname(target))
    if os.path.islink(before):
        os.unlink(before)
    elif os.path.lexists(before):
        shutil.rmtree(before)


def end_by_exception():
    """Where a signal asks for the end, such as at a batch job's limit of time: what is unfinished is removed."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as of nohup
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def main(verb, place, kind, file, library):
    if kind == "torch":
        return export(place, file) if verb == "export" else import_(place, file, load_client(library))
    convert = dcp_converter("torch_save_to_dcp" if verb == "export" else "dcp_to_torch_save")
    if verb == "export":
        check_folder(file)
    with folder_beside(file) as folder:
        between = os.path.join(folder, "checkpoint.pt")
        if verb == "export":
            export(place, between)
            made = os.path.join(folder, "dcp")
            convert(between, made, file)
            return put_folder(made, file)
        convert(file, between, file)
        return import_(place, between, load_client(library))


if __name__ == "__main__":
    try:
        import torch  # noqa: F401: without it nothing here works
    except ImportError as missing:
        print(f"lockstep: {sys.executable}: {missing}: name an interpreter that has torch with --python", file=sys.stderr)
        sys.exit(2)
    end_by_exception()
    try:
        main(*sys.argv[1:])
    except (ConvertError, OSError, KeyError, RuntimeError) as wrong:
        text = f"{wrong.filename}: {wrong.strerror}" if isinstance(wrong, OSError) and wrong.filename else str(wrong).partition("\n")[0]
        print(f"lockstep: {text}", file=sys.stderr)
        sys.exit(2)
