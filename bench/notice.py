"""A crash is noticed: from SIGKILL to the moment the control plane takes the event up."""
import os
import tempfile
import time

import figure
import session

GOAL_MS = 3


def measure(tools, quick):
    count = 20 if quick else 120
    command = [session.job("ticker.py")]
    options = ["--start-method", "exec", "--max-restarts", str(count + 10)]
    with session.Session(tools, command, ranks=4, options=options) as run:
        delays = [notice_one(run, index) for index in range(count)]
        syncs = sync_times(run.folder, 30 if quick else 200)
    return [
        figure.from_samples("crash noticed", "ms", delays, goal=GOAL_MS, judged="p99",
                            note="SIGKILL of one of 4 ranks of a job without torch, in turn; until the rank_exited event's time in the journal"),
        figure.from_samples("journal sync", "ms", syncs,
                            note="append of 8 KiB and fdatasync on the journal's file system; done by a thread of its own, never awaited by a restart"),
    ]


def notice_one(run, index):
    """Kills a rank of the newest epoch; returns the delay in ms."""
    ranks = run.running(epoch=index + 1)["ranks"]
    run.wait_event("loop_began", accept=lambda payload: payload["epoch"] == index + 1)  # else it counts as a start that failed
    victim = ranks[index % len(ranks)]
    before = run.last_sequence()
    at = session.kill(victim["pid"])
    event = run.wait_event("rank_exited", before, lambda payload: payload["rank"] == victim["rank"])
    return (event.at - at) / 1e6


def sync_times(folder, count):
    """What an fdatasync of a journal page or two costs there, in ms."""
    times = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(count):
            begin = time.perf_counter()
            file.write(bytes(8192))
            os.fdatasync(file.fileno())
            times.append(1000 * (time.perf_counter() - begin))
    return times
