"""A launcher with the published policy of NVIDIA's resiliency extension (fault tolerance package), written anew from its documentation.

Ranks send heartbeats; the launcher looks every 5 s; the timeout is the longest interval between two beats of a rank that was seen,
times 5, once each rank has sent 10; a dead rank or a missed timeout restarts all ranks: SIGTERM, 15 s, SIGKILL, then fresh
processes. Nothing is resumed but what the script itself saves. It stands in for the package where that isn't installed.

    policy_heartbeat.py NPROC SCRIPT ARGS...
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

import heartbeat
import session

POLL_S, SAFETY, STOP_S = 5.0, 5.0, 15.0


class Ranks:
    def __init__(self, count, command, beats_path):
        port = str(session.free_port())
        common = {**os.environ, heartbeat.VARIABLE: beats_path, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count),
                  "LOCAL_WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
        self.processes = [subprocess.Popen([sys.executable, "-u", *command], env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                          for rank in range(count)]
        self.last, self.count, self.longest = {}, dict.fromkeys(range(count), 0), 0.0

    def note(self, rank, now):
        if rank in self.last:
            self.longest = max(self.longest, now - self.last[rank])
        self.last[rank] = now
        self.count[rank] += 1

    def learnt(self):
        return min(self.count.values()) >= heartbeat.BEATS_TO_LEARN

    def failed(self):
        return any(process.poll() not in (None, 0) for process in self.processes)

    def finished(self):
        return all(process.poll() == 0 for process in self.processes)

    def silent(self, timeout):
        now = time.monotonic()
        running = [rank for rank, process in enumerate(self.processes) if process.poll() is None]
        return timeout is not None and any(rank in self.last and now - self.last[rank] > timeout for rank in running)

    def stop(self):
        for number, patience in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
            for process in self.processes:
                if process.poll() is None:
                    process.send_signal(number)
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline and any(process.poll() is None for process in self.processes):
                time.sleep(0.05)


def run(count, command, sock, path):
    timeout = None  # learnt once, kept over restarts
    while True:
        ranks = Ranks(count, command, path)
        for _ in heartbeat.beats(sock):
            pass  # what the ranks before have left
        looked = time.monotonic()
        while True:
            time.sleep(0.02)
            now = time.monotonic()
            for rank in heartbeat.beats(sock):
                ranks.note(rank, now)
            if timeout is None and ranks.learnt():
                timeout = SAFETY * ranks.longest
            if now - looked < POLL_S:
                continue
            looked = now
            if ranks.finished():
                return 0
            if ranks.failed() or ranks.silent(timeout):
                break
        ranks.stop()


def main():
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="race-") as folder:
        sock, path = heartbeat.listen(folder)
        return run(int(sys.argv[1]), sys.argv[2:], sock, path)


if __name__ == "__main__":
    sys.exit(main())
