"""lockstep.feed.Loader: items of all kinds, in torch too, and those that cannot be prepared."""
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from feed_service import Service, photo_folder

from lockstep.feed import FeedError, Loader

try:
    import numpy
    import torch
except ImportError:
    numpy = None

COUNT = 96


def setUpModule():
    global folder
    if numpy is None:
        raise unittest.SkipTest("needs python3-torch (./dev setup)")
    folder = photo_folder(COUNT)


class Tokens(unittest.TestCase):
    def test_windows_of_a_token_file(self):
        tokens = numpy.arange(64_500, 65_500, dtype="<u2")  # more than int16 holds
        with tempfile.TemporaryDirectory() as where:
            tokens.tofile(pathlib.Path(where, "text.bin"))
            with Service(pathlib.Path(where, "text.bin"), "--tokens", 32) as service:
                with Loader("images", job="t", batch=4, socket=service.socket) as loader:
                    seen = {}
                    for batch in loader:
                        self.assertEqual((len(batch), 33), batch.images.shape)
                        seen.update((int(i), row.tolist()) for i, row in zip(batch.ids, batch.images))
                        self.assertEqual(torch.int32, batch.torch()[0].dtype)
                        self.assertEqual(batch.images.tolist(), batch.torch()[0].tolist())
        self.assertEqual({i: tokens[32 * i : 32 * i + 33].tolist() for i in range(999 // 32)}, seen)


class Arrays(unittest.TestCase):
    def test_elements_of_all_kinds_are_the_same_in_torch(self):
        for dtype in ("|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8"):
            rows = (numpy.arange(60 * 2 * 5).reshape(60, 2, 5) % 3).astype(dtype)
            with tempfile.TemporaryDirectory() as where:
                numpy.save(pathlib.Path(where, "rows.npy"), rows)
                with Service(pathlib.Path(where, "rows.npy")) as service, Loader("images", job="t", batch=4, socket=service.socket) as loader:
                    for batch in loader:
                        tensor, _ = batch.torch()
                        self.assertTrue(numpy.array_equal(rows[batch.ids], tensor.numpy()), dtype)
                        self.assertEqual(rows.dtype, tensor.numpy().dtype)
                        self.assertEqual(batch.images.__array_interface__["data"][0], tensor.data_ptr())

    def batch_of(self, rows):
        where = self.enterContext(tempfile.TemporaryDirectory())
        numpy.save(pathlib.Path(where, "rows.npy"), rows)
        service = self.enterContext(Service(pathlib.Path(where, "rows.npy")))
        return self.enterContext(Loader("images", job="t", batch=4, socket=service.socket)).next_batch()

    def test_numbers_that_torch_does_not_have_are_wider_or_an_error_that_names_the_way_out(self):
        for dtype, wider in (("<u2", torch.int32), ("<u4", torch.int64)):
            rows = numpy.iinfo(dtype).max - numpy.arange(24, dtype=dtype).reshape(4, 2, 3, 1)  # images would be channels last
            batch = self.batch_of(rows)
            tensor, _ = batch.torch()
            self.assertEqual((wider, rows[batch.ids].transpose(0, 3, 1, 2).tolist()), (tensor.dtype, tensor.tolist()))
        for dtype in ("<u8", "longdouble"):
            with self.assertRaisesRegex(FeedError, r"torch has no numbers of (uint64|float128): take batch.images and convert them"):
                self.batch_of(numpy.arange(12, dtype=dtype).reshape(4, 3)).torch()

    def test_what_torch_does_not_take_keeps_no_slot(self):
        def refuse(capsule):
            raise TypeError("no such elements")

        rows = numpy.arange(400, dtype="<i4").reshape(100, 4)
        with tempfile.TemporaryDirectory() as where:
            numpy.save(pathlib.Path(where, "rows.npy"), rows)
            with Service(pathlib.Path(where, "rows.npy")) as service, Loader("images", job="t", batch=4, prefetch=2, socket=service.socket) as loader:
                for _ in range(6):  # three times the ring
                    batch = loader.next_batch()
                    with self.assertRaises(TypeError):
                        batch._slot.tensor(batch._link.images_view, refuse)
                self.assertEqual(4, len(batch.torch()[0]))


class Corrupt(unittest.TestCase):
    def test_a_batch_of_which_no_item_can_be_prepared_is_an_error_that_says_why(self):
        with tempfile.TemporaryDirectory() as copy:
            shutil.copytree(folder, copy, dirs_exist_ok=True)
            with Service(copy, "--threads", 1, "--cache", "12M") as service, Loader("images", job="a", batch=8, prefetch=2, socket=service.socket) as loader:
                self.assertEqual(8, len(loader.next_batch()))
                os.rename(copy, copy + ".gone")
                try:
                    with self.assertRaisesRegex(FeedError, r"epoch \d+, step \d+: none of the 8 items .* item \d+ \(.*\.jpg\): .*: No such file.* Mend"):
                        for _ in range(2 * COUNT):  # some are in memory
                            loader.next_batch()
                    before = loader.state_dict()
                    with self.assertRaises(FeedError):
                        for _ in range(2 * COUNT):
                            loader.next_batch()
                    self.assertNotEqual(before, loader.state_dict())  # each call goes on
                finally:
                    os.rename(copy + ".gone", copy)
                self.assertRegex(service.said(), r"warning: item \d+ \(.*\.jpg\) is left out: .*No such file.*; 1 so far")
                taken = 0
                while taken < 8:  # less, or an error, of what was prepared before the folder came back
                    try:
                        taken = len(loader.next_batch())
                    except FeedError:
                        pass

    def test_a_corrupt_photo_is_skipped_at_the_same_place_for_all_and_listed(self):
        with tempfile.TemporaryDirectory() as copy:
            shutil.copytree(folder, copy, dirs_exist_ok=True)
            broken = sorted(pathlib.Path(copy).rglob("*.jpg"))[17]
            broken.write_bytes(b"no photo")
            with Service(copy) as service:
                loaders = [Loader("images", job=job, batch=8, seed=7, beside=False, socket=service.socket) for job in "ab"]
                seen = [[(b.ids.tolist(), b.skipped) for b in loader] for loader in loaders]
                self.assertEqual(seen[0], seen[1])
                self.assertEqual([17], [i for _, skipped in seen[0] for i in skipped])
                self.assertEqual(COUNT - 1, sum(len(ids) for ids, _ in seen[0]))
                status = service.status()
                self.assertEqual(1, status["corrupt_items"])
                self.assertIn(broken.name, status["corrupt"][0]["key"])
                for loader in loaders:
                    loader.close()


if __name__ == "__main__":
    unittest.main()
