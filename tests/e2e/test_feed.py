"""Two jobs with overlapping sets train from one data service; jobs and service are killed at any moment, and each job still has each of its
photos exactly once per epoch."""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from harness import JOBS, PYTHON, ROOT, undocumented

sys.path.insert(0, str(ROOT / "tests/python"))
from feed_service import Service, await_that, photo_folder
import shared_memory

COUNT, EPOCHS = 240, 3
SETS = {"a": (0, 180), "b": (60, 240)}
LIMIT_S = 240


def setUpModule():
    global folder
    folder = photo_folder(COUNT)


class Feed(unittest.TestCase):
    def setUp(self):
        self.out = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-e2e-", dir="/tmp")))
        self.shared_memory = shared_memory.names()
        self.jobs = {}
        self.addCleanup(self.kill_jobs)

    def kill_jobs(self):
        for process in self.jobs.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, service, job):
        env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "GATE": str(self.out / "gate")}
        with open(self.out / f"{job}.log", "ab") as log:
            self.jobs[job] = subprocess.Popen([PYTHON, str(JOBS / "fed.py"), str(self.out / job), service.socket, job, *map(str, SETS[job]), str(EPOCHS)],
                                              env=env, stdout=log, stderr=log)

    def noted(self, job):
        path = self.out / job
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def run_to_the_end(self, service, disturb=lambda: None):
        for job in SETS:
            self.start(service, job)
        await_that(lambda: len(service.status()["jobs"]) == len(SETS))
        self.assertEqual(set(), undocumented(service.status(), "feed_status.md", {"left_out", "predicted_loads"}))
        (self.out / "gate").touch()
        deadline = time.monotonic() + LIMIT_S
        while any(process.poll() is None for process in self.jobs.values()):
            self.assertLess(time.monotonic(), deadline)
            disturb()
            time.sleep(0.02)
        for job, process in self.jobs.items():
            self.assertEqual(0, process.returncode, (self.out / f"{job}.log").read_text())

    def assert_each_photo_once_an_epoch(self):
        for job, (begin, end) in SETS.items():
            for epoch in range(EPOCHS):
                ids = [i for entry in self.noted(job) if entry["epoch"] == epoch for i in entry["ids"]]
                self.assertEqual(list(range(begin, end)), sorted(ids), (job, epoch))

    def assert_nothing_left(self):
        self.assertEqual(set(), shared_memory.left(self.shared_memory))

    def test_two_jobs_have_the_union_prepared_once(self):
        with Service(folder, "--threads", 2, "--cache", "50M", name="photos") as service:  # 70 photos beside the threads: no epoch fits
            self.run_to_the_end(service)
            await_that(lambda: service.status()["jobs"] == [])
            sharing, cache = (service.status()[key] for key in ("sharing", "cache"))
        self.assert_each_photo_once_an_epoch()
        self.assert_nothing_left()
        wanted = 2 * 180 * EPOCHS
        self.assertGreaterEqual(sharing["deliveries"], wanted)
        # The union is 240 an epoch. What is in the first ring was made before the other job was there, and each ring is ahead when its job ends.
        self.assertLessEqual(sharing["preparations"], 240 * EPOCHS + 3 * 64, sharing)
        self.assertLessEqual(cache["peak_bytes"], cache["budget_bytes"])
        for job in SETS:
            losses = [entry["loss"] for entry in self.noted(job)]
            self.assertLess(sum(losses[-5:]) / 5, sum(losses[:5]) / 5)

    def test_killed_jobs_and_services_lose_and_repeat_nothing(self):
        chance = random.Random(5)
        with Service(folder, "--threads", 2, name="photos") as service:
            killed = {"a": 0, "b": 0, "service": 0}
            plan = iter([("a", 5), ("service", 12), ("b", 20), ("service", 24), ("a", 28)])  # once so many batches have been noted
            due = next(plan)

            def disturb():
                nonlocal due
                for job, process in self.jobs.items():
                    if process.poll() == -signal.SIGKILL:
                        self.start(service, job)
                if due is None or sum(len(self.noted(job)) for job in SETS) < due[1]:
                    return
                time.sleep(chance.uniform(0, 0.05))  # at any moment, not where a batch has just been noted
                if due[0] == "service":
                    service.kill()
                    service.start()
                else:
                    self.jobs[due[0]].kill()
                    self.jobs[due[0]].wait()
                killed[due[0]] += 1
                due = next(plan, None)

            self.run_to_the_end(service, disturb)
            await_that(lambda: service.status()["jobs"] == [])
        self.assertEqual({"a": 2, "b": 1, "service": 2}, killed)
        self.assert_each_photo_once_an_epoch()
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
