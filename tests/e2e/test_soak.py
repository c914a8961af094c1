"""Restart after restart: neither watcher nor starter nor zygote grows. LOCKSTEP_SOAK=60 says how many (1000)."""
import collections
import os
import pathlib
import re
import time
import unittest

from harness import POLL_S, Run, RunTest, children

RESTARTS = int(os.environ.get("LOCKSTEP_SOAK") or 1000)
OF_TORCH = min(RESTARTS, 40)
SETTLED = 10  # by this restart every pool and cache has its size
BARE = '''
import lockstep

def train(epoch):
    lockstep.step(epoch)
'''
# With buffers, and with shared memory that its death leaves behind.
TORCH = '''
import mmap, os
import torch
import torch.distributed as dist
import lockstep

def train(epoch):
    dist.init_process_group("gloo")
    with open(f"/dev/shm/lockstep-e2e-{os.getpid()}", "wb+") as file:
        file.truncate(1 << 20)
        global memory
        memory = mmap.mmap(file.fileno(), 1 << 20)
    weights = torch.zeros(1 << 18)
    ckpt = lockstep.Checkpoint({"weights": weights})
    step = ckpt.restore() + 1
    if weights[0] != step:
        raise ValueError(f"{weights[0]} in step {step}")
    weights += 1
    ckpt.step(step)
    dist.barrier()
'''
# Rank 0 and rank 1 die by turns; in two epochs they wait until they have been measured.
END = f'''
import os, signal, sys, time

folder, restarts, epoch = sys.argv[1], int(sys.argv[2]), int(os.environ["LOCKSTEP_EPOCH"])
train(epoch)
while epoch in ({SETTLED + 1}, restarts + 1) and not os.path.exists(f"{{folder}}/seen.{{epoch}}"):
    time.sleep({POLL_S})
if epoch <= restarts and int(os.environ["RANK"]) == epoch % 2:
    os.kill(os.getpid(), signal.SIGKILL)
'''
SLACK_KB = 2048
HISTORY_KB = 4  # an incident stays in memory for `lockstep incidents`: about 2 KB
LOOKS = 10


class Soak(RunTest):
    def start(self, job, restarts, method):
        self.place = self.folder()
        (self.place / "job.py").write_text(job + END)
        # Ranks die so soon that not all may have been seen to make a step: that is not to end the job.
        (self.place / "job.toml").write_text(f"name = 'soak'\n[run]\nno_progress_limit = {restarts + 1}\n")
        options = ["--start-method", method, "--max-restarts", str(restarts), "--job-file", str(self.place / "job.toml")]
        return Run(self, str(self.place / "job.py"), str(self.place), str(restarts), ranks=2, options=options)

    def assert_nothing_grows(self, run, restarts, roles):
        """`roles`: of the processes that live through all restarts, {name: function that gives the pid}."""
        settled, end = (self.measure(run, number + 1, roles) for number in (SETTLED, restarts))
        run.finish(timeout=60)
        self.assertEqual([[str(epoch % 2)] for epoch in range(1, restarts + 1)], run.suspects(), run)
        for what in ("processes", "shared_memory"):
            self.assertEqual(settled[what], end[what], f"{what}\n{run}")
        for name in roles:
            for what in ("pid", "descriptors", "threads"):
                self.assertEqual(settled[name][what], end[name][what], f"{what} of the {name}\n{run}")
            allowed_kb = SLACK_KB + (HISTORY_KB * (restarts - SETTLED) if name == "watcher" else 0)
            self.assertLess(end[name]["memory_kb"] - settled[name]["memory_kb"], allowed_kb, f"memory of the {name}\n{run}")

    def measure(self, run, epoch, roles):
        """While this epoch waits for us."""
        def waits():
            status = run.status()
            return status.get("epoch") == epoch and status["state"] == "running" and all(pid() for pid in roles.values())

        run.wait(f"epoch {epoch}", waits, timeout=60 + RESTARTS // 3)
        seen = {name: sizes(pid()) for name, pid in roles.items()}
        seen["processes"] = len(run.processes())
        seen["shared_memory"] = len([name for name in os.listdir("/dev/shm") if name.startswith("lockstep-e2e-")])
        (self.place / f"seen.{epoch}").touch()
        return seen

    def test_by_exec(self):
        run = self.start(BARE, RESTARTS, "exec")
        self.assert_nothing_grows(run, RESTARTS, {"watcher": lambda: run.watcher.pid, "starter": run.starter})

    def test_torch_from_the_zygote(self):
        def zygote():
            """The child of the starter that has the workers of the next epoch ready, in a nest."""
            with_nest = [pid for pid in children(run.starter()) if any(len(children(child)) == 2 for child in children(pid))]
            return with_nest[0] if with_nest else None

        run = self.start(TORCH, OF_TORCH, "zygote")
        self.assert_nothing_grows(run, OF_TORCH, {"watcher": lambda: run.watcher.pid, "starter": run.starter, "zygote": zygote})
        self.assertGreater(run.step(), SETTLED, run)  # from the buffers, again and again


def sizes(pid):
    proc = pathlib.Path(f"/proc/{pid}")
    always = descriptors(proc / "fd")  # some are open for a moment only
    for _ in range(LOOKS):
        time.sleep(POLL_S)
        always &= descriptors(proc / "fd")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    return {"pid": pid, "descriptors": always, "threads": int(status["Threads"]), "memory_kb": int(status["VmRSS"].split()[0])}


def descriptors(folder):
    """How many there are of each kind: what they lead to, without the numbers of pipes, sockets and epochs."""
    found = collections.Counter()
    for path in folder.iterdir():
        try:
            found[re.sub(r"\d+", "N", os.readlink(path))] += 1
        except FileNotFoundError:
            continue  # closed meanwhile
    return found


if __name__ == "__main__":
    unittest.main()
