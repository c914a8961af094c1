"""Freezes a process with the cgroup freezer, v1 or v2, in a group of its own. For root only."""
import errno
import os
import pathlib
import time

ROOTS = {1: pathlib.Path("/sys/fs/cgroup/freezer"), 2: pathlib.Path("/sys/fs/cgroup/unified")}
LIMIT_S = 10


def why_not(version):
    """Why there is no freezer of this version here; None when there is."""
    if os.geteuid() != 0:
        return "only root may make a cgroup"
    root = root_of(version)
    if version == 1:
        return None if (root / "cgroup.procs").exists() else f"no v1 freezer at {root}"
    return None if (root / "cgroup.controllers").exists() else f"no cgroup v2 at {root}"


def root_of(version):
    unified = pathlib.Path("/sys/fs/cgroup")
    return unified if version == 2 and (unified / "cgroup.controllers").exists() else ROOTS[version]


class Freezer:
    """One group. remove() thaws and moves out whoever is in it."""

    def __init__(self, test, version=1):
        self.version = version
        self.group = root_of(version) / f"lockstep-e2e-{os.getpid()}"
        self.group.mkdir()
        test.addCleanup(self.remove)

    def freeze(self, pid):
        (self.group / "cgroup.procs").write_text(str(pid))
        self._set(frozen=True)

    def _set(self, frozen):
        if self.version == 1:
            (self.group / "freezer.state").write_text("FROZEN" if frozen else "THAWED")
        else:
            (self.group / "cgroup.freeze").write_text("1" if frozen else "0")

    def thaw(self):
        self._set(frozen=False)

    def remove(self):
        self.thaw()
        for pid in (self.group / "cgroup.procs").read_text().split():
            (root_of(self.version) / "cgroup.procs").write_text(pid)
        deadline = time.monotonic() + LIMIT_S
        while True:  # a group that holds a process on its way out can't be removed yet
            try:
                return self.group.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
