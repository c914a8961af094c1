"""A data service of a test's own, in a folder of its own, and small photos for it.

    with Service(folder / "images") as service:
        loader = lockstep.feed.Loader("images", job="a", batch=8, socket=service.socket)
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("LOCKSTEP_BINARY") or str(ROOT / "build/release/bin/lockstep")
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "bench"), str(ROOT / "tests")]
os.environ.setdefault("LOCKSTEP_BINARY", BINARY)
from free_port import free_port  # for those that import this


class Service:
    def __init__(self, data, *words, name="images"):
        self.folder = tempfile.TemporaryDirectory(prefix="lockstep-feed-", dir="/tmp")
        self.socket = os.path.join(self.folder.name, "feed.sock")
        self.command = [BINARY, "feed", "serve", "--data", str(data), "--name", name, "--socket", self.socket, *map(str, words)]
        self.process = None
        self.start()

    def start(self):
        self.log = open(os.path.join(self.folder.name, "log"), "ab")
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)
        while self.status() is None:
            if self.process.poll() is not None:
                raise RuntimeError(self.said())
            time.sleep(0.02)

    def said(self):
        return pathlib.Path(self.folder.name, "log").read_text()

    def status(self):
        """None: it does not answer."""
        done = subprocess.run([BINARY, "feed", "status", "--socket", self.socket, "--json"], capture_output=True, text=True, timeout=30)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        self.process.wait()
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill(signal.SIGTERM)
        self.folder.cleanup()


def photo_folder(count):
    """Small photos for the tests of a module, whose setUpModule calls this; without what they need, they are skipped."""
    try:
        import PIL  # noqa: F401

        import photos
    except ImportError:
        photos = None
    if photos is None or not photos.photos():
        raise unittest.SkipTest("needs python3-pil, mate-backgrounds and lomiri-wallpapers-16.04 (./dev setup)")
    folder = tempfile.mkdtemp(prefix="lockstep-photos-")
    unittest.addModuleCleanup(shutil.rmtree, folder, ignore_errors=True)
    photos.write(folder, count)
    return folder


def stream_of(loader, steps):
    """[((epoch, position), id, bytes)], of the items of so many batches."""
    items = []
    for batch in (loader.next_batch() for _ in range(steps)):
        items += [((batch.epoch, batch.position + k), int(i), batch.images[k].tobytes()) for k, i in enumerate(batch.ids)]
    return items


def refusal_of(*words):
    """The one line that `lockstep feed` with these words ends with."""
    done = subprocess.run([BINARY, "feed", *map(str, words)], capture_output=True, text=True, timeout=30)
    if (done.returncode, done.stdout, done.stderr.count("\n")) != (2, "", 1):
        raise AssertionError(f"expected exit status 2 and one line, found {done}")
    return done.stderr


def await_that(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s")
        time.sleep(0.01)
