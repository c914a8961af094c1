"""lockstep.feed.Loader against a data service: no copy, leases, exact resume in worlds of any size, one clear error each."""
import copy
import os
import pathlib
import pickle
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from feed_service import Service, await_that, photo_folder, refusal_of, stream_of
import shared_memory

import lockstep.feed
from lockstep.feed import CenterClip, CenterCrop, FeedError, Flip, Loader, RandomClip, RandomResizedCrop

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


class Feed(unittest.TestCase):
    words = ("--threads", 2, "--cache", "64M")

    def setUp(self):
        self.shared_memory = shared_memory.names()
        self.service = self.enterContext(Service(folder, *self.words))

    def tearDown(self):
        self.assertEqual(set(), shared_memory.left(self.shared_memory))

    def loader(self, job="a", **how):
        how = {"batch": 8, "transform": [RandomResizedCrop(64), Flip()], "seed": 7, "socket": self.service.socket, **how}
        loader = Loader("images", job=job, **how)
        self.addCleanup(loader.close)
        return loader

    # ---- batches ----

    def test_an_epoch_has_each_photo_once_with_its_label(self):
        loader = self.loader()
        self.assertEqual(COUNT // 8, len(loader))
        for epoch in range(2):
            batches = [(batch.epoch, batch.ids.tolist(), batch.labels.tolist()) for batch in loader]
            self.assertEqual([epoch] * len(loader), [batch[0] for batch in batches])
            self.assertEqual(list(range(COUNT)), sorted(i for batch in batches for i in batch[1]))
            labels = dict(pair for batch in batches for pair in zip(batch[1], batch[2]))
            self.assertEqual(sorted(labels.values()), [labels[i] for i in range(COUNT)])  # folders are numbered as their items are

    def test_nothing_is_copied_after_the_decode(self):
        batch = next(iter(self.loader()))
        images, labels = batch.torch()
        address = batch.images.__array_interface__["data"][0]
        self.assertEqual(((8, 64, 64, 3), numpy.uint8), (batch.images.shape, batch.images.dtype))
        self.assertEqual(((8, 3, 64, 64), address), (tuple(images.shape), images.data_ptr()))
        self.assertTrue(images.is_contiguous(memory_format=torch.channels_last))
        self.assertEqual(address, numpy.from_dlpack(batch).__array_interface__["data"][0])
        self.assertEqual(batch.labels.__array_interface__["data"][0], labels.data_ptr())
        self.assertTrue(any(address >= begin and address < end for begin, end in memfd_mappings()))

    def test_a_batch_is_lent_until_nothing_refers_to_it(self):
        loader = self.loader(prefetch=2)
        kept = next(iter(loader)).torch()[0]
        copy = kept.clone()
        for _ in range(5):
            loader.next_batch()
            self.assertTrue(torch.equal(kept, copy))
        second = loader.next_batch()
        with self.assertRaisesRegex(FeedError, "all 2 batches .* are kept .*copy what you keep"):
            loader.next_batch()
        del second
        loader.next_batch()
        del kept
        second = loader.next_batch()
        loader.next_batch()

    def test_release_gives_it_back_at_once(self):
        loader = self.loader(prefetch=2)
        kept = [loader.next_batch() for _ in range(2)]
        for batch in kept:
            batch.release()
        loader.next_batch()

    def test_functions_of_the_user_run_here(self):
        loader = self.loader(transform=[CenterCrop(32, shorter=40), lambda images: torch.from_numpy(images).float().mul(1 / 255)])
        images, _ = next(iter(loader))
        self.assertEqual(((8, 32, 32, 3), torch.float32), (tuple(images.shape), images.dtype))
        self.assertLessEqual(images.max().item(), 1)

    def test_a_batch_on_which_a_function_raises_is_still_the_next(self):
        expected = stream_of(self.loader("whole"), 5)

        def fails_twice(images, calls=[]):
            calls.append(len(images))
            if len(calls) in (3, 4):
                raise KeyError(len(calls))
            return images

        loader, found = self.loader("whole2", transform=[RandomResizedCrop(64), Flip(), fails_twice]), []
        for step in (0, 1, None, None, 2, 3, 4):
            before = loader.state_dict()
            if step is None:
                self.assertRaises(KeyError, loader.next_batch)
                self.assertEqual(before, loader.state_dict())
            else:
                found += loader.next_batch().ids.tolist()
        self.assertEqual([item[1] for item in expected], found)

    def test_a_state_of_before_a_function_raised_is_gone_on_from(self):
        def fails(images):
            if loader.epoch == 0 and not failed:
                failed.append(True)
                raise KeyError
            return images

        failed = []
        loader = self.loader(transform=[CenterCrop(32), fails])
        state = loader.state_dict()
        self.assertRaises(KeyError, loader.next_batch)
        loader.load_state_dict(state)
        self.assertEqual(list(range(COUNT)), sorted(i for batch in loader for i in batch.ids.tolist()))

    def test_a_state_that_is_refused_leaves_the_loader_where_it_was(self):
        expected = [i for _, i, _ in stream_of(self.loader("whole", beside=False), 25)]
        foreign = self.loader("foreign", seed=8).state_dict()
        loader = self.loader(beside=False)
        found = []
        for bad in (foreign, {"version": 1, "stream": "lockstep-stream-2 1 1"}):
            found += loader.next_batch().ids.tolist()
            before = loader.state_dict()
            with self.assertRaises(FeedError):
                loader.load_state_dict(bad)
            self.assertEqual((before, COUNT // 8), (loader.state_dict(), len(loader)))
        kept = loader.state_dict()
        found += [i for _, i, _ in stream_of(loader, 22)]
        self.assertEqual(expected[:-8], found)
        self.service.kill()
        loader._wait_s = 0.5
        with self.assertRaisesRegex(FeedError, "has been gone for 0.5 s"):
            loader.load_state_dict(kept)
        self.service.start()
        loader._wait_s = 60
        self.assertEqual(expected[-8:], loader.next_batch().ids.tolist())

    def test_a_loader_is_a_data_set_of_torch(self):
        expected, loader = self.loader("whole"), self.loader("torch", prefetch=2)
        batches = torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None)
        self.assertEqual(COUNT // 8, len(batches))
        for _ in range(2):
            for (images, labels), same in zip(batches, expected):
                self.assertEqual((8, 3, 64, 64), tuple(images.shape))
                self.assertEqual(same.labels.tolist(), labels.tolist())

    def test_one_step_needs_no_list(self):
        self.assertEqual((8, 32, 32, 3), self.loader(transform=CenterCrop(32)).next_batch().images.shape)
        with self.assertRaisesRegex(FeedError, "transform: expected a RandomResizedCrop or"):
            self.loader("no crop", transform=lambda images: images)

    def test_two_threads_at_once_are_told(self):
        entered, let_go = threading.Event(), threading.Event()

        def waits(images):
            entered.set()
            let_go.wait(60)  # a second one that gets here is an error, and no hang
            return images

        loader = self.loader(transform=[CenterCrop(32), waits])
        first = threading.Thread(target=loader.next_batch)
        first.start()
        entered.wait()
        try:
            with self.assertRaisesRegex(FeedError, "two threads take batches of this loader at once: take them in one"):
                loader.next_batch()
        finally:
            let_go.set()
            first.join()
        self.assertEqual(1, loader.next_batch().step)

    def test_batches_of_one_that_some_ranks_lack_are_said(self):
        with self.assertWarnsRegex(UserWarning, "the last step of an epoch has 1 items for 5 ranks"):
            self.loader(batch=1, world=5, rank=0)

    def test_images_that_were_put_in_their_place_are_those_of_torch(self):
        batch = next(iter(self.loader()))
        raw = batch.images
        self.assertEqual(raw.__array_interface__["data"][0], batch.torch()[0].data_ptr())
        batch.images = raw / 2
        images = batch.torch()[0]
        self.assertEqual(((8, 3, 64, 64), torch.float64), (tuple(images.shape), images.dtype))
        numpy.testing.assert_array_equal(raw / 2, images.permute(0, 2, 3, 1).numpy())
        batch.images = torch.from_numpy(raw).float()
        self.assertEqual(torch.float32, batch.torch()[0].dtype)
        batch.images = raw
        self.assertEqual(raw.__array_interface__["data"][0], batch.torch()[0].data_ptr())

    def test_a_centre_is_mirrored_too(self):
        plain, mirrored = (self.loader(job, transform=[CenterCrop(32, shorter=40), *flip]).next_batch() for job, flip in (("a", ()), ("b", (Flip(1),))))
        self.assertEqual(plain.ids.tolist(), mirrored.ids.tolist())
        self.assertEqual(plain.images[:, :, ::-1].tobytes(), mirrored.images.tobytes())

    # ---- order ----

    def test_state_goes_on_byte_for_byte_in_worlds_of_any_size_and_with_any_threads(self):
        whole = stream_of(self.loader(batch=1), 2 * COUNT)
        for threads in (1, 8):
            with Service(folder, "--threads", threads, "--cache", "40M") as service:
                state, found = None, []
                for world, steps in ((8, 3), (6, 4), (3, 5), (8, 3)):  # 48 + 48 items are an epoch; 30 + 48 of the next
                    ranks = [self.loader(world=world, rank=r, batch=2, socket=service.socket) for r in range(world)]
                    for rank in ranks if state else ():
                        rank.load_state_dict(state)
                    for rank in ranks:
                        found += stream_of(rank, steps)
                    states = [rank.state_dict() for rank in ranks]
                    state = states[0]
                    self.assertEqual([state] * world, states)
                    self.assertLessEqual(len(repr(state)), 1024)
                    for rank in ranks:
                        rank.close()
            self.assertEqual(whole[: len(found)], sorted(found))
            self.assertEqual(174, len(found))

    def test_two_jobs_see_the_same_items_and_other_crops_and_are_as_if_alone(self):
        alone = stream_of(self.loader("b", beside=False), 36)
        with Service(folder, "--threads", 1) as service:
            a, b = (self.loader(job, beside=False, socket=service.socket) for job in "ab")
            pairs = [(stream_of(a, 1), stream_of(b, 1)) for _ in range(36)]
            sharing = service.status()["sharing"]
        self.assertEqual(alone, [item for _, batch in pairs for item in batch])
        for one, other in ((one, other) for ones, others in pairs for one, other in zip(ones, others)):
            self.assertEqual(one[:2], other[:2])
            self.assertNotEqual(one[2], other[2])
        self.assertGreaterEqual(sharing["deliveries"], 2 * 3 * COUNT)
        self.assertLessEqual(sharing["preparations"], 3 * COUNT + 2 * 32)  # 32 before b was there, 32 ahead in the rings

    def test_who_comes_later_finds_in_memory_what_the_first_had(self):  # there is room for more than a lap
        first = self.loader("a")
        had = stream_of(first, 6)
        late = self.loader("b")
        self.assertEqual([i for _, i, _ in had], [i for _, i, _ in stream_of(late, 6)])
        self.assertLessEqual(self.service.status()["sharing"]["preparations"], COUNT + 4 * 8)

    def test_status_says_which_jobs_are_a_group_and_how_they_share(self):
        with Service(folder, "--threads", 2, "--cache", "14M") as service:  # of which 10 are the threads', and 4 hold seven photos
            a, b, alone = (self.loader(job, socket=service.socket, beside=job != "alone") for job in ("a", "b", "alone"))
            stream_of(a, 12)
            self.assertEqual(list(range(COUNT)), sorted(i for _, i, _ in stream_of(b, 12)))
            await_that(lambda: service.status()["groups"][0]["predicted_loads"])
            status = service.status()
        (group,) = status["groups"]
        self.assertEqual({"a", "b"}, {row["job"] for row in group["jobs"]})
        self.assertEqual((7, 7), (group["seed"], group["cache_items"]))
        self.assertEqual("predicted loads", group["why"])
        self.assertEqual({"common", "paced"}, set(group["predicted_loads"]))
        self.assertIn(group["policy"], group["predicted_loads"])
        self.assertEqual("alone", next(row["order"] for row in status["jobs"] if row["job"] == "alone"))

    def test_an_image_of_more_pixels_than_the_service_takes(self):
        with Service(folder, "--max-pixels", 1000) as service:
            with self.assertRaisesRegex(FeedError, r"the image has \d+ x \d+ pixels: the limit is 1000 in all \(--max-pixels\)"):
                self.loader(socket=service.socket).next_batch()
            self.assertGreaterEqual(service.status()["images"]["too_large"], 8)

    def test_a_policy_is_what_was_asked_for(self):
        with Service(folder, "--policy", "paced") as service:
            a, b = (self.loader(job, socket=service.socket) for job in "ab")
            self.assertEqual(("paced", "as asked for"), tuple(service.status()["groups"][0][key] for key in ("policy", "why")))
        with Service(folder, "--policy", "independent") as service:
            a, b = (stream_of(self.loader(job, socket=service.socket), 12) for job in "ab")
            self.assertEqual([], service.status()["groups"])
        self.assertNotEqual([i for _, i, _ in a], [i for _, i, _ in b])

    def test_where(self):
        listed = [3, 90, 5, 17]
        for where, ids in ((range(10, 20), range(10, 20)), (listed, sorted(listed)), (numpy.arange(COUNT) % 2 == 1, range(1, COUNT, 2))):
            loader = self.loader(where=where, batch=4)
            self.assertEqual(list(ids), sorted(i for batch in loader for i in batch.ids.tolist()))
            loader.close()
        for label in ("photo03", 3, numpy.int64(3)):
            photo = self.loader(where={"labels": [label]})
            self.assertEqual({3}, {label for batch in photo for label in batch.labels.tolist()})
            photo.close()

    def test_numbers_may_be_numpys(self):
        self.assertEqual(4, len(self.loader(batch=numpy.int64(4), seed=numpy.uint32(7), transform=[CenterCrop(numpy.int64(64))]).next_batch()))

    # ---- faults ----

    def test_a_service_that_is_killed_and_started_again_loses_and_repeats_nothing(self):
        undisturbed, found = stream_of(self.loader("x"), 30), []
        with Service(folder, "--threads", 2) as service:
            loader = self.loader("x", socket=service.socket)
            for step in range(30):
                if step in (3, 11, 12):
                    service.kill()
                    starter = threading.Timer(0.2, service.start)
                    starter.start()
                found += stream_of(loader, 1)
            starter.join()
        self.assertEqual(undisturbed, found)

    def test_a_job_that_starts_while_a_killed_service_is_replaced_waits_for_it(self):
        with Service(folder, "--threads", 2) as service:
            service.kill()
            starter = threading.Timer(0.2, service.start)
            starter.start()
            self.assertEqual(COUNT, len(self.loader("x", socket=service.socket, batch=1)))
            starter.join()

    def test_a_service_that_dies_while_a_job_joins_is_waited_for(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as place, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            path = os.path.join(place, "feed.sock")
            listener.bind(path)
            listener.listen()

            def die():
                listener.accept()[0].close()
                os.rename(self.service.socket, path)

            dying = threading.Thread(target=die)
            dying.start()
            try:
                self.assertEqual(COUNT, len(self.loader("x", socket=path, batch=1)))
            finally:
                dying.join()
                os.rename(path, self.service.socket)

    def test_batches_of_a_service_that_is_gone_stay(self):
        loader = self.loader(wait_s=2)
        batch = loader.next_batch()
        before = batch.images.copy()
        self.service.kill()
        with self.assertRaisesRegex(FeedError, "the data service has been gone for 2 s"):
            while True:
                loader.next_batch()
        self.assertTrue((before == batch.images).all())

    def test_a_service_that_stands_still_is_an_error_and_no_hang(self):
        loader = self.loader(wait_s=2, prefetch=2)
        self.service.process.send_signal(signal.SIGSTOP)
        try:
            with self.assertRaisesRegex(FeedError, "prepared no batch for 2 s"):
                for _ in range(5):
                    loader.next_batch()
        finally:
            self.service.process.send_signal(signal.SIGCONT)

    def test_a_service_that_stands_still_is_not_waited_for_longer_when_joining(self):
        self.service.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        try:
            self.assertIn(f"the data service, process {self.service.process.pid}, is there and has not answered for 0.3 s", self.refusal(wait_s=0.3))
        finally:
            self.service.process.send_signal(signal.SIGCONT)
        self.assertLess(time.monotonic() - begin, 20)

    def test_who_joins_a_service_that_stands_still_is_let_in_when_it_goes_on(self):
        self.service.process.send_signal(signal.SIGSTOP)
        going_on = threading.Timer(1, self.service.process.send_signal, [signal.SIGCONT])
        going_on.start()
        try:
            self.assertEqual(8, len(self.loader(wait_s=60).next_batch()))
        finally:
            going_on.join()

    def test_who_joins_a_service_that_stands_still_and_dies_is_let_in_by_the_next(self):
        self.service.process.send_signal(signal.SIGSTOP)

        def start_anew():
            self.service.kill()
            self.service.start()

        dying = threading.Timer(1, start_anew)
        dying.start()
        try:
            self.assertEqual(8, len(self.loader(wait_s=60).next_batch()))
        finally:
            dying.join()

    def test_a_killed_job_is_reaped(self):
        script = f"import sys; sys.path.insert(0, {str(HERE)!r})\nimport feed_service, lockstep.feed, os, signal\n" \
                 f"kept = [b for b, _ in zip(lockstep.feed.Loader('images', job='k', batch=8, socket={self.service.socket!r}), range(2))]\n" \
                 "os.kill(os.getpid(), signal.SIGKILL)"
        other = self.loader("other", prefetch=2)
        first = other.next_batch().ids.tolist()
        self.assertEqual(-9, subprocess.run([sys.executable, "-c", script], timeout=60).returncode)
        await_that(lambda: [row["job"] for row in self.service.status()["jobs"]] == ["other"])
        rest = [i for batch in other for i in batch.ids.tolist()]
        self.assertEqual(list(range(COUNT)), sorted(first + rest))

    def test_a_fork_has_no_say(self):
        loader = self.loader(prefetch=3)
        batch = loader.next_batch()
        child = os.fork()
        if child == 0:
            try:
                loader.next_batch()
            except FeedError as error:
                os._exit(0 if "make another one after a fork" in str(error) else 1)
            os._exit(2)
        self.assertEqual(0, os.waitpid(child, 0)[1])
        self.assertEqual(8, len(batch))
        self.assertEqual(COUNT - 8, sum(len(b) for b in loader))

    def test_a_loader_that_closes_is_gone_although_a_child_lives(self):
        loader = self.loader("forked")
        state = loader.state_dict()
        sleeper, waker = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(waker)
            os.read(sleeper, 1)
            os._exit(0)
        try:
            loader.load_state_dict(state)
            loader.next_batch()
            loader.close()
            self.assertEqual(8, len(self.loader("forked").next_batch()))
        finally:
            os.close(waker)
            os.close(sleeper)
            os.waitpid(child, 0)

    def test_a_child_that_closes_its_parent_s_loader_disturbs_nothing(self):
        loader = self.loader("forked")
        child = os.fork()
        if child == 0:
            loader.close()
            os._exit(0)
        self.assertEqual(0, os.waitpid(child, 0)[1])
        self.assertEqual(COUNT, sum(len(batch) for batch in loader))

    def test_few_descriptors(self):
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        try:
            with Service(folder, "--threads", 2) as service:  # it inherits the limit
                loaders = [self.loader(f"job{i}", batch=4, prefetch=2, socket=service.socket) for i in range(70)]
                counts = [sum(len(batch) for batch in loader) for loader in loaders]
                self.assertEqual([COUNT] * 70, counts)
                self.assertEqual(70, len(service.status()["jobs"]))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    # ---- errors ----

    def refusal(self, **how):
        with self.assertRaises(FeedError) as caught:
            self.loader(**how)
        self.assertNotIn("\n", str(caught.exception))
        return str(caught.exception)

    def test_what_is_wrong_is_said_in_one_sentence(self):
        for batch in (0, -1):
            self.assertIn(f"batch {batch}: expected 1 to 1048576", self.refusal(batch=batch))
        for seed in (-1, 1 << 64):
            self.assertIn("seed must be a whole number from 0 to 18446744073709551615, found ", self.refusal(seed=seed))
        self.assertIn("prefetch 1", self.refusal(prefetch=1))
        self.assertIn(f"world 1000: the set has {COUNT} items", self.refusal(world=1000, rank=0))
        self.assertIn("rank 2: expected less than world", self.refusal(world=2, rank=2))
        self.assertIn("neither a step of lockstep.feed nor a function", self.refusal(transform=[3]))
        self.assertIn("expected a RandomResizedCrop or a CenterCrop", self.refusal(transform=[Flip()]))
        self.assertIn("CenterCrop is the second crop; expected one", self.refusal(transform=[RandomResizedCrop(32), CenterCrop(32)]))
        self.assertIn("RandomClip is the second crop", self.refusal(transform=[RandomResizedCrop(32), RandomClip(1, 8000)]))
        self.assertIn("Flip is the second flip", self.refusal(transform=[RandomResizedCrop(32), Flip(), Flip(0)]))
        for steps in ([RandomClip(1, 8000), Flip()], [Flip(), CenterClip(1, 8000)]):
            self.assertIn("a sound can't be mirrored; leave out Flip", self.refusal(transform=steps))
        self.assertIn("crop of 300 x 300 is larger", self.refusal(transform=[CenterCrop(300)]))
        self.assertIn('no label "cat"', self.refusal(where={"labels": ["cat"]}))
        self.assertIn("has no label 96; it has ", self.refusal(where={"labels": [96]}))
        self.assertIn("label -1: expected a name, or a number", self.refusal(where={"labels": [-1]}))
        self.assertIn(f"item {COUNT} is beyond", self.refusal(where=[COUNT]))
        self.assertIn("item -1: expected ids from 0 on", self.refusal(where=[3, -1]))
        self.assertIn("empty list of ids", self.refusal(where=[]))
        self.assertIn(f"from 0 to before 1000000: expected some of the {COUNT}", self.refusal(where=range(10**6)))
        self.assertIn(f"a mask of 95 items, and images has {COUNT}", self.refusal(where=numpy.ones(COUNT - 1, bool)))
        for size in (8.5, (8.9, 8.2), (8, 8, 8), "8"):
            with self.assertRaisesRegex(FeedError, "expected whole pixels, or .height, width."):
                CenterCrop(size)
        self.assertIn("empty list of ids", self.refusal(where=numpy.zeros(COUNT, bool)))
        self.assertIn('no label "1st"', self.refusal(where={"labels": ["1st"]}))
        self.assertIn("expected a range, a dict", self.refusal(where="label < 3"))
        self.assertIn("found recipe={", self.refusal(transform=[RandomResizedCrop(32), Flip(float("nan"))]))
        for how in ({"job": "a\udcff"}, {"where": {"labels": ["\udcff"]}}):  # as Python has a name of bytes that are no UTF-8
            self.assertIn("names (in UTF-8) and lists of them, found ", self.refusal(**how))
        self.loader("é").close()
        self.assertIn("no data service answers", self.refusal(socket="/tmp/nobody.sock"))
        self.assertIn("no label", self.refusal(where={"labels": [f"n{number:08}" for number in range(25000)]}))
        self.assertIn("more than this system lets through at once", self.refusal(where={"labels": ["n" * (1 << 20)] * 8}))
        self.assertIn("can't be reached: Not a directory", self.refusal(socket=__file__ + "/feed.sock"))
        self.assertIn("can't be reached: AF_UNIX path too long", self.refusal(socket="/tmp/" + 200 * "x"))
        self.assertIn("a file of that name which is no socket", self.refusal(socket=__file__))
        self.loader("twice")
        self.assertIn('job "twice" has a rank 0 already', self.refusal(job="twice"))
        with self.assertRaisesRegex(FeedError, 'there is no data set "imagenet"'):
            Loader("imagenet", job="a", batch=8, socket=self.service.socket)
        with self.assertRaisesRegex(FeedError, "the state has version None"):
            self.loader("state").load_state_dict({"epoch": 3})
        with self.assertRaisesRegex(FeedError, "the state has version None"):
            self.loader("word").load_state_dict("garbage")
        with self.assertRaisesRegex(FeedError, "of another seed"):
            self.loader("of").load_state_dict(self.loader("other", seed=8).state_dict())
        loader = self.loader("copied")
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(FeedError, "can't be copied or pickled"):
                copied(loader)

    def test_bad_commands(self):
        socket = self.service.socket
        self.assertIn("/nowhere: No such file", refusal_of("serve", "--data", "/nowhere", "--socket", socket + "2"))
        self.assertIn(f"in use by process {self.service.process.pid}", refusal_of("serve", "--data", folder, "--socket", socket))
        self.assertIn("no directory /nowhere", refusal_of("serve", "--data", folder, "--socket", "/nowhere/s"))
        self.assertIn("a state has a few numbers; expected auto, common, paced or independent",
                      refusal_of("serve", "--data", folder, "--socket", socket + "2", "--policy", "dsa"))
        self.assertIn("no data service answers", refusal_of("status", "--socket", socket + "2"))
        with tempfile.TemporaryDirectory() as empty:
            self.assertIn(empty, refusal_of("serve", "--data", empty, "--socket", socket + "2"))


def memfd_mappings():
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        if "memfd:lockstep-feed" in line:
            begin, end = line.split()[0].split("-")
            yield int(begin, 16), int(end, 16)


if __name__ == "__main__":
    unittest.main()
