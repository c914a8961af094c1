"""What Lockstep costs while nothing fails and no checkpoint is taken: the same steps with and without it, by turns.

Two jobs live at the same time, one under `lockstep run`, one started with the plain environment, and never step at the same
time. While the plain one steps, Lockstep's processes are stopped, so that their cost can't reach the baseline. Turns
alternate A B B A, and each pair gives one ratio: drift of the machine cancels within a pair. Several sessions of fresh
processes, because where a process lies in memory alone can make a difference.
"""
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

import figure
import session
import stats

STEPS_PER_TURN = 12
TICKS = os.sysconf("SC_CLK_TCK")


def measure(tools, quick):
    ranks = max(2, min(4, os.cpu_count()))
    sessions, pairs = (1, 6) if quick else (3, 32)
    results = [one_session(tools, ranks, pairs) for _ in range(sessions)]
    ratios = [100 * (ratio - 1) for result in results for ratio in result["ratios"]]
    low, high = stats.median_interval(ratios)
    cpu = [share for result in results for share in result["cpu"]]
    plain = statistics.median([seconds for result in results for seconds in result["plain_s"]]) / STEPS_PER_TURN
    return [
        figure.from_samples("step time added", "%", ratios, goal=1,
                            note=f"{ranks} ranks, {sessions} sessions of {pairs} pairs of {STEPS_PER_TURN} steps of {1000 * plain:.1f} ms; "
                                 f"95 % interval of the median {low:+.2f} to {high:+.2f} % (bootstrap)"),
        figure.from_samples("watcher and starter, per rank", "% of a core", cpu, goal=0.5, judged="max",
                            note="user and system time of `lockstep run` and its starter while the job steps, by session"),
    ]


class Turns:
    """The FIFOs of one job that runs jobs/turns.py."""

    def __init__(self, folder, name, ranks):
        self.path = os.path.join(folder, name)
        self.ranks = ranks
        for rank in range(ranks):
            os.mkfifo(f"{self.path}.{rank}")
        self.fds = [os.open(f"{self.path}.{rank}", os.O_RDWR) for rank in range(ranks)]
        self.answers = session.Lines(self.path + ".answers")

    def command(self):
        return [session.job("turns.py"), self.path, self.answers.path]

    def take(self, steps):
        """Seconds for this many steps."""
        answered = len(self.answers.all)
        for fd in self.fds:
            os.write(fd, b"%d\n" % steps)
        return session.wait_for(lambda: self.answers.all[answered][1] if len(self.answers.all) > answered else None, "turn")["seconds"]

    def close(self):
        for fd in self.fds:
            os.close(fd)
        self.answers.close()


def one_session(tools, ranks, pairs):
    folder = tempfile.mkdtemp(prefix="lockstep-bench-")
    ours, plain = Turns(folder, "ours", ranks), Turns(folder, "plain", ranks)
    workers = start_plain(tools, plain.command(), ranks)
    try:
        with session.Session(tools, ours.command(), ranks) as run:
            return take_turns(run, ours, plain, pairs)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        ours.close()
        plain.close()
        shutil.rmtree(folder)


def start_plain(tools, command, ranks):
    """What any launcher does, and no more: the environment of torchrun's contract."""
    common = {**os.environ, "PYTHONPATH": os.path.join(session.ROOT, "python"), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks),
              "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(session.free_port())}
    return [subprocess.Popen([tools.python, "-u", *command], env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for rank in range(ranks)]


def take_turns(run, ours, plain, pairs):
    ours.take(STEPS_PER_TURN)  # waits for the start, and warms up
    plain.take(STEPS_PER_TURN)
    watchers = [run.process.pid, run.starter_pid()]
    result = {"ratios": [], "plain_s": []}
    spent = awake = 0.0
    for pair in range(pairs):
        times = {}
        for job in ([ours, plain] if pair % 2 == 0 else [plain, ours]):
            if job is plain:
                times[job] = without(watchers, lambda: plain.take(STEPS_PER_TURN))
            else:
                cpu, begin = cpu_seconds(watchers), time.monotonic()
                times[job] = ours.take(STEPS_PER_TURN)
                spent += cpu_seconds(watchers) - cpu
                awake += time.monotonic() - begin
        result["ratios"].append(times[ours] / times[plain])
        result["plain_s"].append(times[plain])
    return {**result, "cpu": [100 * spent / awake / run.ranks]}


def without(pids, action):
    """Does it while these processes are stopped."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        return action()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def cpu_seconds(pids):
    """User and system time of all threads of these processes so far."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS
