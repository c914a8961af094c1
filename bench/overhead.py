"""What Lockstep costs while nothing fails and no checkpoint is taken: the same steps with and without it, by turns.

Workers start by exec, as the plain ones do: the zygote leaves them a heap on large pages, and a step is 3 % faster for that.
Three jobs live at the same time and never step at the same time: one under `lockstep run`, two started with the plain
environment. The second plain one is the control: compared with the first in the same way, it must show no difference, or the
method measures something else. While a plain job steps, Lockstep's processes are stopped, so that their cost can't reach the
baseline. The jobs follow each other in a circle, so that each finds the caches as another job left them, and the circle is
turned round in every second session, so that drift of the machine cancels; turns are short, so that little of it falls between
two that are compared. Many sessions of fresh processes, because where a process lies in memory alone can make a difference.
"""
import dataclasses
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

import figure
import session

STEPS_PER_TURN = 8
TICKS = os.sysconf("SC_CLK_TCK")


def measure(tools, quick):
    ranks = max(2, min(4, os.cpu_count()))
    sessions, pairs = (2, 3) if quick else (16, 28)
    results = [one_session(tools, ranks, pairs, number) for number in range(sessions)]
    added = {name: [100 * (ratio - 1) for result in results for ratio in result[name]] for name in ("ours", "control")}
    cpu = [share for result in results for share in result["cpu"]]
    plain = statistics.median([seconds for result in results for seconds in result["plain_s"]]) / STEPS_PER_TURN
    what = f"{ranks} ranks, {sessions} sessions of {pairs} rounds of {STEPS_PER_TURN} steps of {1000 * plain:.1f} ms"
    control = figure.from_ratios("control: plain against plain", "%", added["control"], goal=1)
    ours = figure.from_ratios("step time added", "%", added["ours"], goal=1, control=control, note=what)
    return [
        ours,
        dataclasses.replace(control, goal=None, doubt=""),
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


def one_session(tools, ranks, rounds, number):
    folder = tempfile.mkdtemp(prefix="lockstep-bench-")
    jobs = {name: Turns(folder, name, ranks) for name in ("ours", "plain", "control")}
    workers = [worker for name in ("plain", "control") for worker in start_plain(tools, jobs[name].command(), ranks)]
    try:
        with session.Session(tools, jobs["ours"].command(), ranks, ["--start-method", "exec"]) as run:
            return take_turns(run, jobs, list(jobs)[:: 1 if number % 2 == 0 else -1], rounds)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        for job in jobs.values():
            job.close()
        shutil.rmtree(folder)


def start_plain(tools, command, ranks):
    """What any launcher does, and no more: the environment of torchrun's contract.

    Each worker gets a session of its own, as under Lockstep: where the kernel groups processes by session
    (sched_autogroup), one that shares its session has a smaller share of a busy machine, and the comparison is void.
    """
    common = {**os.environ, "PYTHONPATH": os.path.join(session.ROOT, "python"), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks),
              "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(session.free_port())}
    return [subprocess.Popen([tools.python, "-u", *command], env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True) for rank in range(ranks)]


def take_turns(run, jobs, circle, rounds):
    for job in jobs.values():
        job.take(STEPS_PER_TURN)  # waits for the start, and warms up
    watchers = [run.process.pid, run.starter_pid()]
    result = {"ours": [], "control": [], "plain_s": []}
    spent = awake = 0.0
    for _ in range(rounds):
        times = {}
        for name in circle:
            if name != "ours":
                times[name] = without(watchers, lambda job=jobs[name]: job.take(STEPS_PER_TURN))
                continue
            cpu, begin = cpu_seconds(watchers), time.monotonic()
            times[name] = jobs[name].take(STEPS_PER_TURN)
            spent += cpu_seconds(watchers) - cpu
            awake += time.monotonic() - begin
        result["ours"].append(times["ours"] / times["plain"])
        result["control"].append(times["control"] / times["plain"])
        result["plain_s"].append(times["plain"])
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
