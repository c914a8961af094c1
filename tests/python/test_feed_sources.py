"""The data service on what lies behind HTTP, on sounds, and on packed documents; with a real server that is killed, and comes back."""
import functools
import http.server
import io
import json
import pathlib
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import unittest
import wave

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from feed_service import BINARY, Service
from range_server import RangeServer

from lockstep.feed import CenterClip, CenterCrop, FeedError, Loader, RandomClip

try:
    import numpy
    from PIL import Image
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None

SHARDS, OF_SHARD = 3, 8


def write_shards(folder):
    chance = numpy.random.default_rng(5)
    for shard in range(SHARDS):
        with tarfile.open(pathlib.Path(folder, f"train-{shard:03}.tar"), "w") as tar:
            for i in range(OF_SHARD):
                picture = io.BytesIO()
                Image.fromarray(chance.integers(0, 255, (40, 40, 3), dtype=numpy.uint8)).save(picture, "PNG")
                for name, content in ((f"{i}.png", picture.getvalue()), (f"{i}.cls", str(shard).encode())):
                    about = tarfile.TarInfo(name)
                    about.size = len(content)
                    tar.addfile(about, io.BytesIO(content))


def refused(*words):
    """The one sentence of a service that does not start."""
    with tempfile.TemporaryDirectory() as where:
        done = subprocess.run([BINARY, "feed", "serve", "--socket", f"{where}/s", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
    return done.stderr


class Case(unittest.TestCase):
    def setUp(self):
        if numpy is None:
            self.skipTest("needs python3-numpy and python3-pil (./dev setup)")
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def loader(self, service, job="a", **how):
        loader = Loader("images", job=job, socket=service.socket, **{"batch": 4, "seed": 7, **how})
        self.addCleanup(loader.close)
        return loader


class Http(Case):
    def setUp(self):
        super().setUp()
        write_shards(self.folder)
        self.server = self.enterContext(RangeServer(self.folder))
        self.braces = f"train-{{000..{SHARDS - 1:03}}}.tar"

    def stream(self, service, steps, **how):
        loader = self.loader(service, transform=[CenterCrop(32, shorter=36)], **how)
        return [(b.ids.tolist(), b.labels.tolist(), b.images.tobytes(), b.skipped) for b in (loader.next_batch() for _ in range(steps))]

    def test_shards_are_those_of_the_disk(self):
        pathlib.Path(self.folder, "shards.txt").write_text(self.braces)
        with Service(self.folder) as service:
            expected = self.stream(service, 6)
        for data in (self.server.url + self.braces, self.server.url, str(pathlib.Path(self.folder, "shards.txt"))):
            with Service(data) as service:
                self.assertEqual(expected, self.stream(service, 6))

    def test_a_list_of_files_is_the_same_here_and_behind_a_server(self):
        for i, name in enumerate(("c at/a b.jpg", "dog/\u00fc.jpg", "dog/x#y.jpg", "dog/p%20q.jpg", "dog/br{1}.jpg")):
            pathlib.Path(self.folder, name).parent.mkdir(exist_ok=True)
            Image.new("RGB", (40, 40), (40 * i, 0, 0)).save(pathlib.Path(self.folder, name))
        found = subprocess.run(["find", ".", "-name", "*.jpg"], cwd=self.folder, capture_output=True, check=True).stdout
        pathlib.Path(self.folder, "list.txt").write_bytes(found)
        streams = []
        for data in (f"{self.folder}/list.txt", self.server.url + "list.txt"):
            with Service(data) as service:
                streams.append(self.stream(service, 2))
        self.assertEqual(streams[0], streams[1])
        self.assertEqual([0, 1, 1, 1, 1], sorted(label for _, labels, _, _ in streams[0] for label in labels))

    def test_a_server_that_is_killed_and_comes_back_costs_no_item(self):
        with Service(self.folder) as service:
            expected = self.stream(service, 12)
        with Service(self.server.url + self.braces, "--cache", "16M", "--threads", 2) as service:
            loader, found = self.loader(service, transform=[CenterCrop(32, shorter=36)], prefetch=2), []
            for step in range(12):
                if step in (2, 7):
                    self.server.kill()
                    self.server.start()
                batch = loader.next_batch()
                found.append((batch.ids.tolist(), batch.labels.tolist(), batch.images.tobytes(), batch.skipped))
                del batch
            self.assertEqual(0, service.status()["corrupt_items"])
        self.assertEqual(expected, found)

    def test_while_a_server_stays_away_items_are_skipped_and_listed(self):
        with Service(self.server.url + self.braces, "--cache", "16M", "--threads", 2, "--patience", 0.2) as service:
            loader = self.loader(service, transform=[CenterCrop(32, shorter=36)], prefetch=2)
            ids = loader.next_batch().ids.tolist()
            self.server.kill()
            is_away, skipped = True, []
            while loader.epoch == 0:
                try:
                    batch = loader.next_batch()
                    ids += batch.ids.tolist()
                    skipped += batch.skipped
                    del batch
                except FeedError as error:  # none was left of that batch
                    self.assertIn("127.0.0.1", str(error))
                if is_away and service.status()["corrupt_items"] > 0:
                    self.server.start()
                    is_away = False
            status = service.status()
        left_out = {one["item"] for one in status["corrupt"]}
        self.assertEqual(set(range(SHARDS * OF_SHARD)), set(ids) | left_out)
        self.assertEqual(len(ids), len(set(ids)))
        self.assertLessEqual(set(skipped), left_out)
        self.assertGreater(len(left_out), 0)
        self.assertIn("127.0.0.1", status["corrupt"][0]["why"])

    def test_a_shard_that_changes_is_an_error_of_its_items(self):
        with Service(self.server.url + self.braces, "--cache", "16M", "--threads", 2, "--patience", 0) as service:
            shard = pathlib.Path(self.folder, "train-001.tar")
            shard.write_bytes(b"\0" * 10240)
            seen = self.stream(service, 2 * SHARDS)
            status = service.status()
        self.assertEqual(set(range(OF_SHARD, 2 * OF_SHARD)), {i for _, _, _, skipped in seen for i in skipped})
        self.assertEqual({0, 2}, {label for _, labels, _, _ in seen for label in labels})
        self.assertIn("train-001.tar: it has changed since it was opened", status["corrupt"][0]["why"])

    def test_what_is_wrong_is_said(self):
        self.assertIn("train-000.tarr", refused("--data", self.server.url + "train-000.tarr"))
        self.assertIn("neither an index.json nor a shards.txt", refused("--data", self.server.url))
        self.assertIn("train-003.tar: the server has no such file (status 404)", refused("--data", self.server.url + "train-{002..003}.tar"))
        self.server.kill()
        self.assertRegex(refused("--data", self.server.url + "train-000.tar", "--patience", 0.2), "train-000.tar: http://127.0.0.1:.* failed")

    def test_a_signature_is_sent_and_never_shown(self):
        pathlib.Path(self.folder, "shards.txt").write_text("".join(f"train-{i:03}.tar?sig=SECRET\n" for i in range(SHARDS)))
        for data in ("train-000.tar", self.braces, "shards.txt"):
            with Service(f"{self.server.url}{data}?sig=SECRET", "--patience", 0.2) as service:
                pathlib.Path(self.folder, "train-000.tar").write_bytes(b"\0" * 10240)
                with self.assertRaises(FeedError) as none_left:
                    self.stream(service, SHARDS * OF_SHARD, batch=1)
                self.assertGreater(service.status()["corrupt_items"], 0)
                top = subprocess.run([BINARY, "feed", "top", "--once", "--socket", service.socket], capture_output=True, text=True, timeout=30)
                shown = [service.said(), json.dumps(service.status()), top.stdout, str(none_left.exception)]
            write_shards(self.folder)
            for text in shown:
                self.assertIn("train-000" if text == shown[-1] else data.split("{")[0].removesuffix(".tar"), text)
                self.assertNotIn("SECRET", text)
        for data in ("none.tar", "train-{000..000}.tar{2..1}", "train-{1..999999999}.tar", "list.txt"):
            pathlib.Path(self.folder, "list.txt").write_text("\n")
            self.assertNotIn("SECRET", refused("--data", f"{self.server.url}{data}?sig=SECRET", "--patience", 0.2))

    def test_a_server_without_ranges_is_refused(self):
        class Plain(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Plain, directory=self.folder)) as plain:
            threading.Thread(target=plain.serve_forever, daemon=True).start()
            said = refused("--data", f"http://127.0.0.1:{plain.server_address[1]}/train-000.tar")
            plain.shutdown()
        self.assertIn("answers a range request with the whole file (status 200)", said)


class Sound(Case):
    RATE = 8000

    def setUp(self):
        super().setUp()
        chance = numpy.random.default_rng(5)
        self.sounds = [chance.integers(-20000, 20000, (3000 + 500 * i, 2), dtype=numpy.int16) for i in range(6)]
        for i, samples in enumerate(self.sounds):
            self.write(f"s{i}.wav", samples)

    def write(self, name, samples, rate=RATE):
        with wave.open(str(pathlib.Path(self.folder, name)), "wb") as file:
            file.setparams((2, 2, rate, 0, "NONE", ""))
            file.writeframes(samples.tobytes())

    def test_clips_are_parts_of_the_sounds(self):
        with Service(self.folder) as service:
            clip = RandomClip(seconds=0.25, rate=self.RATE, channels=2, dtype="int16")
            loaders = [self.loader(service, job, transform=[clip], batch=2) for job in "ab"]
            whole = {}
            for job, loader in zip("ab", loaders):
                for batch in loader:
                    self.assertEqual(((2, 2, 2000), numpy.int16), (batch.images.shape, batch.images.dtype))
                    for item, found in zip(batch.ids.tolist(), batch.images):
                        starts = numpy.flatnonzero((self.sounds[item][: -1999 or None] == found.T[0]).all(1))
                        self.assertTrue(any((self.sounds[item][s : s + 2000] == found.T).all() for s in starts), item)
                        whole[job, item] = found.tobytes()
            self.assertEqual(12, len(whole))
            self.assertTrue(any(whole["a", i] != whole["b", i] for i in range(6)))

    def test_floats_of_one_channel(self):
        with Service(self.folder) as service:
            batch = self.loader(service, transform=[CenterClip(1.0, self.RATE)], batch=6).next_batch()
            self.assertEqual(((6, 1, 8000), numpy.float32), (batch.images.shape, batch.images.dtype))
            for item, found in zip(batch.ids.tolist(), batch.images):
                mean = (self.sounds[item].astype(numpy.float32) / 32768).mean(1)
                numpy.testing.assert_allclose(mean, found[0, : len(mean)], atol=1e-7)
                self.assertFalse(found[0, len(mean) :].any())
            sounds, _ = batch.torch()
            self.assertEqual((6, 1, 8000), tuple(sounds.shape))

    def test_sounds_that_do_not_fit_or_are_damaged_are_skipped(self):
        self.write("t.wav", self.sounds[0], rate=44100)
        pathlib.Path(self.folder, "u.flac").write_bytes(b"")
        pathlib.Path(self.folder, "v.wav").write_bytes(pathlib.Path(self.folder, "s1.wav").read_bytes()[:-7])
        with Service(self.folder) as service:
            batch = self.loader(service, transform=[RandomClip(0.1, self.RATE)], batch=9).next_batch()
            self.assertEqual([6, 7, 8], sorted(batch.skipped))
            why = {one["key"]: one["why"] for one in service.status()["corrupt"]}
        self.assertIn("44100 samples per second, expected 8000: nothing is resampled", why["t.wav"])
        self.assertIn("empty", why["u.flac"])
        self.assertIn("truncated", why["v.wav"])

    def test_the_wrong_transform_is_refused(self):
        with Service(self.folder) as service:
            with self.assertRaisesRegex(FeedError, "images holds sounds: expected a RandomClip or a CenterClip"):
                self.loader(service)
            with self.assertRaisesRegex(FeedError, "expected float32 or int16"):
                self.loader(service, transform=[RandomClip(1, 8000, dtype="int8")])
            with self.assertRaisesRegex(FeedError, "frames 0: expected at least 1"):
                self.loader(service, transform=[RandomClip(0, 8000)])


class Packed(Case):
    def test_each_pair_of_each_document_comes_once_an_epoch(self):
        chance, length = numpy.random.default_rng(5), 32
        documents = [numpy.append(chance.integers(1, 60000, n), 0) for n in chance.integers(1, 90, 200)]
        numpy.concatenate(documents).astype("<u2").tofile(f"{self.folder}/t.bin")
        numpy.save(f"{self.folder}/ends.npy", numpy.cumsum([len(d) for d in documents]))
        expected = sorted(pair for d in documents for pair in zip(d[:-1].tolist(), d[1:].tolist()))
        for words in (("--pack", "best-fit", "--end-token", 0), ("--pack", "chunk", "--documents", f"{self.folder}/ends.npy")):
            with Service(f"{self.folder}/t.bin", "--tokens", length, *words) as service:
                loader = self.loader(service, batch=8)
                for _ in range(2):
                    pairs = []
                    for batch in loader:
                        self.assertEqual(((len(batch), 3, length + 1), numpy.int64), (batch.images.shape, batch.images.dtype))
                        tokens, pieces, places = batch.images.transpose(1, 0, 2)
                        real = (pieces[:, :-1] == pieces[:, 1:]) & (pieces[:, 1:] > 0)
                        self.assertTrue((places[:, 1:] - places[:, :-1] == 1)[real].all())
                        pairs += zip(tokens[:, :-1][real].tolist(), tokens[:, 1:][real].tolist())
                    self.assertEqual(expected, sorted(pairs))

    def test_what_is_wrong_is_said(self):
        numpy.arange(9, dtype="<u2").tofile(f"{self.folder}/t.bin")
        data = ("--data", f"{self.folder}/t.bin", "--tokens", 4)
        self.assertIn("say either the token that ends each", refused(*data, "--pack", "chunk"))
        self.assertIn("no document in it ends with token 99", refused(*data, "--pack", "chunk", "--end-token", 99))
        self.assertIn("only if they are packed", refused(*data, "--end-token", 3))


class LargeRows(Case):
    def test_what_is_read_is_within_the_budget(self):
        rows = 12
        numpy.lib.format.open_memmap(f"{self.folder}/rows.npy", "w+", numpy.uint8, (rows, 24 << 20)).flush()  # holes
        with Service(f"{self.folder}/rows.npy", "--cache", "80M", "--threads", 8) as service:
            about, most, done = pathlib.Path(f"/proc/{service.process.pid}/status"), 0, threading.Event()

            def look():
                nonlocal most
                while not done.wait(0.002):
                    most = max(most, int(about.read_text().partition("RssAnon:")[2].split()[0]) * 1024)

            watcher = threading.Thread(target=look)
            watcher.start()
            loader = self.loader(service, batch=2, prefetch=2)
            try:
                ids = [i for _ in range(rows // 2) for i in loader.next_batch().ids.tolist()]
            finally:
                done.set()
                watcher.join()
        self.assertEqual(list(range(rows)), sorted(ids))
        self.assertLess(most, 1.05 * 80 * 2**20)


class Bfloat16(Case):
    def test_rows_are_torchs_and_for_numpy_as_many_bits(self):
        bits = numpy.arange(64 * 6, dtype="<u2").reshape(64, 2, 3) + 0x3F80  # from 1.0 on
        head = json.dumps({"x": {"dtype": "BF16", "shape": bits.shape, "data_offsets": [0, bits.nbytes]}}).encode()
        pathlib.Path(f"{self.folder}/x.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bits.tobytes())
        with Service(f"{self.folder}/x.safetensors") as service:
            batch = next(iter(self.loader(service, batch=8)))
            found = [batch.torch()[0]] if torch else []
            numpy.testing.assert_array_equal(bits[batch.ids], batch.images)
            found += [batch.torch()[0]] if torch else []  # after NumPy's were looked at too
            for rows in found:
                self.assertEqual((torch.bfloat16, (8, 2, 3)), (rows.dtype, tuple(rows.shape)))
                self.assertTrue(torch.equal(rows.view(torch.int16), torch.from_numpy(bits[batch.ids].view("<i2"))))
            batch.images = batch.images[:, :1]  # still bits
            if torch:
                part = batch.torch()[0]
                self.assertEqual((torch.bfloat16, (8, 1, 3)), (part.dtype, tuple(part.shape)))
                self.assertTrue(torch.equal(part, rows[:, :1]))

    def test_of_several_tensors_the_one_that_is_named(self):
        rows = numpy.arange(64, dtype="<u4").reshape(16, 4)
        tensors = {name: {"dtype": "U32", "shape": rows.shape, "data_offsets": [i * rows.nbytes, (i + 1) * rows.nbytes]} for i, name in enumerate("xy")}
        head, path = json.dumps(tensors).encode(), f"{self.folder}/xy.safetensors"
        pathlib.Path(path).write_bytes(struct.pack("<Q", len(head)) + head + rows.tobytes() + (rows + 100).tobytes())
        self.assertIn("several tensors, such as x and y: name one by --tensor", refused("--data", path))
        with Service(path, "--tensor", "y") as service:
            batch = next(iter(self.loader(service, batch=8)))
            numpy.testing.assert_array_equal(rows[batch.ids] + 100, batch.images)


if __name__ == "__main__":
    unittest.main()
