"""The training text: the King James Bible from Debian's package bible-kjv-text, 4.4 MB with one verse per line.

The package keeps the text in blocks of 64 KiB, each compressed by the old Unix `compress`, which gzip still reads.
All integers are big-endian; the offsets count from the start of the file:

    0x00  "EC02Compressed Data File"
    0x54  u32 block size, u32 number of blocks n, then n + 1 u32 offsets: block i lies from offset i to offset i + 1
    then  the three-byte header of a .Z file, stored once for all blocks
"""
import os
import struct
import subprocess
import sys
import tempfile

import numpy

SOURCE = "/usr/lib/bible.data"
MAGIC = b"EC02Compressed Data File"
TABLE = 0x54


def decode(data):
    """The plain text in `data`, the content of bible.data. ValueError if it has another form."""
    if not data.startswith(MAGIC):
        raise ValueError(f"expected it to begin with {MAGIC.decode()!r}, found {data[:len(MAGIC)]!r}")
    try:
        _, count = struct.unpack_from(">II", data, TABLE)
        offsets = struct.unpack_from(f">{count + 1}I", data, TABLE + 8)
    except struct.error as error:
        raise ValueError(f"the table of blocks is cut short: {error}") from None
    if offsets[-1] != len(data):
        raise ValueError(f"expected {offsets[-1]} bytes, found {len(data)}")
    header_at = TABLE + 8 + 4 * (count + 1)
    header = data[header_at:header_at + 3]
    return b"".join(expand(header + data[begin:end]) for begin, end in zip(offsets, offsets[1:]))


def expand(block):
    done = subprocess.run(["gzip", "-dc"], input=block, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise ValueError(f"gzip cannot expand a block: {done.stderr.decode().strip()}")
    return done.stdout


def cache_file():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "lockstep", "bible-kjv.txt")


def write_atomically(path, content):
    """Ranks that start together each write a file of their own and the last rename wins: nobody ever reads half."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as private:
        part = os.path.join(private, "text")
        with open(part, "wb") as file:
            file.write(content)
        os.replace(part, path)


def load():
    """The whole text as an array of uint8; of a file that was decoded before, what is read of it comes into memory, no more. Ends the
    program with one line of advice if the package is missing."""
    try:
        return numpy.memmap(cache_file(), dtype=numpy.uint8, mode="c")
    except (OSError, ValueError):
        pass  # not decoded yet, or empty
    try:
        with open(SOURCE, "rb") as file:
            text = decode(file.read())
    except FileNotFoundError:
        sys.exit(f"{SOURCE} is missing: install the training text with `apt install bible-kjv-text`")
    except ValueError as error:
        sys.exit(f"{SOURCE} is not the text of the package bible-kjv-text: {error}")
    try:
        write_atomically(cache_file(), text)
    except OSError:
        pass  # a read-only home costs 40 ms at every start, no more
    return numpy.frombuffer(bytearray(text), dtype=numpy.uint8)
