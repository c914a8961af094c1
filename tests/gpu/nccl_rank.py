"""One rank of a job that does nothing but all-reduces over real NCCL: the driver and NCCL by ctypes, so that no torch is needed.

    nccl_rank.py RANK RANKS ID_FILE [--ops N] [--floats N] [--alone S] [--stop-at OP] [--kill-at OP]

All ranks share the first device; to NCCL each is a host of its own (NCCL_HOSTID, set by whoever starts it), or it would refuse two of them on one
device. Rank 0 writes the communicator's name to ID_FILE. Before each all-reduce a rank sleeps for --alone seconds, which stands for its computing. At
the end it prints the seconds of each all-reduce as JSON, or exits 1 with one line on stderr.
"""
import argparse
import ctypes
import glob
import json
import os
import pathlib
import signal
import site
import sys
import time

FLOAT32, SUM = 7, 0  # of nccl.h: ncclFloat32, ncclSum
STARTS_WITHIN_S = 60


class Unusable(Exception):
    """No device, no library, or a call that one of them refused."""


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class Driver:
    """libcuda, of which little is needed; it is there wherever a device is."""

    def __init__(self):
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Unusable(f"no driver: {error}") from error
        self.call("cuInit", 0)
        devices = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(devices))
        if not devices.value:
            raise Unusable("the driver sees no device")

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status:
            raise Unusable(f"{name}: error {status} of the driver")

    def use_first_device(self):
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)  # NCCL uses the primary one
        self.call("cuCtxSetCurrent", context)

    def floats(self, count):
        """The address of so many ones."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4 * count))
        self.call("cuMemsetD32_v2", address, ctypes.c_uint(0x3F800000), ctypes.c_size_t(count))
        return ctypes.c_void_p(address.value)

    def stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 0)
        return stream

    def wait(self, stream):
        self.call("cuStreamSynchronize", stream)


class Nccl:
    def __init__(self):
        self.library = ctypes.CDLL(nccl_path())
        self.library.ncclGetErrorString.restype = ctypes.c_char_p

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status:
            raise Unusable(f"{name}: {self.library.ncclGetErrorString(status).decode()}")

    def version(self):
        number = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(number))
        return number.value

    def join(self, rank, ranks, id_file):
        unique, comm = UniqueId(), ctypes.c_void_p()
        if rank == 0:
            self.call("ncclGetUniqueId", ctypes.byref(unique))
            part = id_file.with_suffix(".part")
            part.write_bytes(bytes(unique))
            part.rename(id_file)
        ctypes.memmove(ctypes.byref(unique), read_when_there(id_file), ctypes.sizeof(unique))
        self.library.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
        self.call("ncclCommInitRank", ctypes.byref(comm), ranks, unique, rank)
        return comm

    def all_reduce(self, values, count, comm, stream):
        self.call("ncclAllReduce", values, values, ctypes.c_size_t(count), FLOAT32, SUM, comm, stream)


def nccl_path():
    """LOCKSTEP_NCCL, else the one of this Python's packages, else the system's."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    of_packages = [path for folder in folders for path in glob.glob(f"{folder}/nvidia/nccl/lib/libnccl.so.2")]
    for path in filter(None, [os.environ.get("LOCKSTEP_NCCL"), *of_packages, "libnccl.so.2"]):
        try:
            ctypes.CDLL(path)
            return path
        except OSError as error:
            reason = error
    raise Unusable(f"no NCCL: {reason}; pip install nvidia-nccl-cu12, or set LOCKSTEP_NCCL to libnccl.so.2")


def read_when_there(path):
    until = time.monotonic() + STARTS_WITHIN_S
    while not path.exists():
        if time.monotonic() > until:
            raise Unusable(f"rank 0 has not written {path} for {STARTS_WITHIN_S} s")
        time.sleep(0.01)
    return path.read_bytes()


def run(options):
    driver, nccl = Driver(), Nccl()
    driver.use_first_device()
    values, stream = driver.floats(options.floats), driver.stream()
    comm = nccl.join(options.rank, options.ranks, options.id_file)
    took = []
    for op in range(options.ops):
        for at, number in ((options.stop_at, signal.SIGSTOP), (options.kill_at, signal.SIGKILL)):
            if op == at:
                os.kill(os.getpid(), number)
        time.sleep(options.alone)
        begin = time.monotonic()
        nccl.all_reduce(values, options.floats, comm, stream)
        driver.wait(stream)
        took.append(time.monotonic() - begin)
    nccl.call("ncclCommDestroy", comm)
    print(json.dumps(took))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("ranks", type=int)
    parser.add_argument("id_file", type=pathlib.Path)
    parser.add_argument("--ops", type=int, default=60)
    parser.add_argument("--floats", type=int, default=1 << 18)
    parser.add_argument("--alone", type=float, default=0.05)
    parser.add_argument("--stop-at", type=int)
    parser.add_argument("--kill-at", type=int)
    try:
        run(parser.parse_args())
    except Unusable as error:
        sys.exit(f"nccl_rank.py: {error}")


if __name__ == "__main__":
    main()
