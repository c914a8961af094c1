"""Loaders whose batches are made on another machine: the same stream, shared with the jobs there, through kill -9 of either end."""
import os
import pathlib
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from feed_service import Service, free_port, photo_folder, refusal_of, stream_of
import shared_memory

from lockstep.feed import FeedError, Flip, Loader, RandomResizedCrop

COUNT = 96


def setUpModule():
    global folder
    folder = photo_folder(COUNT)


class Relayed(unittest.TestCase):
    def setUp(self):
        self.shared_memory = shared_memory.names()
        port = free_port()
        self.there = self.enterContext(Service(folder, "--threads", 2, "--listen", f"127.0.0.1:{port}"))
        self.far = f"feed://127.0.0.1:{port}"
        self.here = self.relay()

    def tearDown(self):
        self.assertEqual(set(), shared_memory.left(self.shared_memory))

    def relay(self):
        """A machine more."""
        return self.enterContext(Service(self.far))

    def loader(self, service, job="a", **how):
        how = {"batch": 8, "transform": [RandomResizedCrop(64), Flip()], "seed": 7, "socket": service.socket, **how}
        loader = Loader("images", job=job, **how)
        self.addCleanup(loader.close)
        return loader

    def undisturbed(self, steps):
        loader = self.loader(self.there, beside=False)
        items = stream_of(loader, steps)
        loader.close()
        return items

    def test_the_stream_is_that_of_the_service(self):
        self.assertEqual(self.undisturbed(20), stream_of(self.loader(self.here, beside=False), 20))

    def test_why_a_batch_has_no_items_comes_along(self):
        with tempfile.TemporaryDirectory() as damaged:
            pathlib.Path(damaged, "0.jpg").write_bytes(b"no photo")
            port = free_port()
            with Service(damaged, "--listen", f"127.0.0.1:{port}"), Service(f"feed://127.0.0.1:{port}") as here:
                loader = self.loader(here, batch=1)
                for _ in range(3):  # each has its place in the stream
                    with self.assertRaisesRegex(FeedError, r"none of the 1 items of this batch could be prepared\. item 0 \(0\.jpg\): .*\. Mend"):
                        loader.next_batch()

    def test_ranks_on_two_machines_and_another_job_share(self):
        services = [self.here, self.relay()]
        ranks = [self.loader(service, "a", rank=rank, world=2, batch=4) for rank, service in enumerate(services)]
        other = self.loader(self.there, "b")
        seen = []
        for _ in range(COUNT // 8):
            mine = [i for rank in ranks for i in rank.next_batch().ids.tolist()]
            self.assertEqual(sorted(other.next_batch().ids.tolist()), sorted(mine))
            seen += mine
        self.assertEqual(list(range(COUNT)), sorted(seen))
        status = services[1].status()
        self.assertLessEqual(status["sharing"]["preparations"], COUNT + 8 * 8)
        self.assertEqual({("a", 0), ("a", 1), ("b", 0)}, {(row["job"], row["rank"]) for row in status["jobs"]})

    def test_either_end_may_be_killed_and_nothing_is_lost_or_repeated(self):
        undisturbed, found = self.undisturbed(40), []
        loader, starter = self.loader(self.here, beside=False), threading.Thread()
        starter.start()
        killed = {3: [self.there], 9: [self.here], 15: [self.there, self.here], 16: [self.here], 30: [self.there]}
        for step in range(40):
            for service in killed.get(step, ()):
                starter.join()
                service.kill()
            if step in killed:
                starter = threading.Thread(target=lambda again=killed[step]: [service.start() for service in again])
                starter.start()
            found += stream_of(loader, 1)
        starter.join()
        self.assertEqual(undisturbed, found)

    def test_a_job_that_starts_elsewhere_takes_its_own_place(self):
        loader = self.loader(self.here)
        first = stream_of(loader, 3)
        state = loader.state_dict()
        loader.close()
        second = self.loader(self.relay())
        second.load_state_dict(state)
        self.assertEqual(sorted(range(COUNT)), sorted(item[1] for item in first + stream_of(second, 9)))

    def test_a_service_that_stays_away_is_an_error_that_says_where_it_was(self):
        loader = self.loader(self.here, wait_s=1)
        loader.next_batch()
        self.there.kill()
        with self.assertRaisesRegex(FeedError, f"has been gone for 1 s \\({self.far}: "):
            while True:
                loader.next_batch()

    def test_what_is_wrong_is_said_in_one_sentence(self):
        for words, said in ((["--data", self.far, "--cache", "1G"], "are to be said to that service"),
                            (["--data", "feed://127.0.0.1:1", "--patience", "0"], "feed://127.0.0.1:1: "),
                            (["--data", folder, "--listen", "0.0.0.0:0"], "give a token")):
            with self.subTest(words=words), tempfile.TemporaryDirectory(dir="/tmp") as place:
                self.assertIn(said, refusal_of("serve", *words, "--socket", os.path.join(place, "s")))


if __name__ == "__main__":
    unittest.main()
