"""What a test leaves in /dev/shm while other tests, and other programs, run beside it."""
import os
import pathlib
import re
import time

FOLDER = "/dev/shm"
POLL_S, PATIENCE_S = 0.1, 5
# As what a test starts names its files: Lockstep and the jobs of the tests, torch, Python's multiprocessing (mp- and pym- are arenas, psm_ blocks) and
# NCCL. What begins otherwise is no test's: any program of the machine may make files there.
BEGINS = ("lockstep", "torch_", "pym-", "mp-", "psm_", "sem.", "nccl-")


def names():
    return {name for name in os.listdir(FOLDER) if name.startswith(BEGINS)}


def left(before):
    """Names that were not there `before` and stay. Those that a living process has mapped that is no child of this one are of another test."""
    deadline = time.monotonic() + PATIENCE_S
    found = names() - before
    while found and time.monotonic() < deadline:
        time.sleep(POLL_S)
        found &= names() - mapped_by_others()
    return found


def mapped_by_others():
    found, ours = set(), str(os.getpid())
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            mapped = set(re.findall(rf" {FOLDER}/([^/\n]+)", (process / "maps").read_text()))
            if mapped and ours not in ancestry(process.name):
                found |= mapped
        except OSError:
            continue  # gone, or not ours to look at
    return found


def ancestry(pid):
    """The process, its parent, and so on."""
    while pid != "0":
        yield pid
        pid = re.search(r"^PPid:\s*(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1]
