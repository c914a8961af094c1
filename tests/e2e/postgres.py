"""A PostgreSQL server of the test's own, from Debian's package; its folder and processes go with the test.

    server = Postgres(self)                # skips the test where there is no PostgreSQL
    server.url                             # postgresql:///postgres?...
    server.kill(); server.start()          # as when its machine loses power, and comes back
"""
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from harness import NOBODY, identity, kill


def programs():
    """The newest version's; Debian keeps them off the PATH."""
    return max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), default=None)


class Postgres:
    def __init__(self, test):
        self.programs = programs()
        if self.programs is None:
            test.skipTest("no PostgreSQL on this machine (./dev setup installs it)")
        self.user = identity(NOBODY if os.geteuid() == 0 else None)  # it refuses to run as root
        self.folder = pathlib.Path(test.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-pg-", dir="/tmp")))  # short: it holds a socket
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
        self.url = f"postgresql:///postgres?user=postgres&host={self.folder}"
        self.process = None
        self._run("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync").wait()
        test.addCleanup(self.kill)
        self.start()

    def _run(self, program, *words):
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen([self.programs / program, "-D", self.folder / "data", *words], cwd=self.folder, stdin=subprocess.DEVNULL,
                                    stdout=log, stderr=log, start_new_session=True, **self.user)

    def start(self):
        """Until it takes sessions. What the one that was killed left behind may keep it out for a moment."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                self.process = self._run("postgres", "-k", self.folder, "-c", "listen_addresses=", "-c", "fsync=off",
                                         "-c", "dynamic_shared_memory_type=mmap")  # in its folder: /dev/shm would keep it
            if subprocess.run([self.programs / "pg_isready", "-q", "-h", self.folder, "-U", "postgres"]).returncode == 0:
                return
            time.sleep(0.05)
        raise AssertionError(f"PostgreSQL does not start\n{(self.folder / 'log').read_text()[-2000:]}")

    def ask(self, sql):
        """What psql prints of it."""
        words = ["-h", self.folder, "-U", "postgres", "-Atc", sql, "postgres"]
        return subprocess.run([self.programs / "psql", *words], capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    def kill(self):
        kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
