"""@lockstep.restartable: the ranks that survive a fault keep their process, and the result is that of an undisturbed run, bit for bit."""
import json
import pathlib
import signal
import subprocess
import unittest

from harness import BINARY, STEPS, Run, RunTest, ddp
from test_nodes import NodesTest

WORLD = 4  # ranks of each job here


def pids_in(run, epoch):
    """By rank, once that epoch has new steps and the status, which comes from all nodes now and then, knows them."""
    def ranks():
        steps = run.steps()
        before = max((line["step"] for line in steps if line["epoch"] < epoch), default=-1)
        rows = run.status().get("ranks", []) if any(line["epoch"] == epoch for line in steps) else []
        return rows if len(rows) == WORLD and all((row["step"] or 0) > before + 1 for row in rows) else None
    return [row["pid"] for row in run.wait(f"steps of epoch {epoch}", ranks)]


def changed(before, after):
    return [rank for rank, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]


def held_by(pid):
    """Descriptors, threads, bytes of private memory."""
    proc = pathlib.Path("/proc") / str(pid)
    fields = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    return len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir())), int(fields["RssAnon"].split()[0]) * 1024


class Restartable(RunTest):
    def train(self, faults=(), steps=2 * STEPS, options=()):
        return Run(self, "ddp.py", *ddp(steps, faults, step_time=0.1), "--restartable", ranks=WORLD, options=options)

    def check(self, run, victims, symptoms, steps=2 * STEPS):
        """One fault per epoch; only the victim of each gets a new process."""
        pids = [pids_in(run, epoch + 1) for epoch in range(len(victims) + 1)]
        run.finish()
        self.assertEqual([[victim] for victim in victims], [changed(*pair) for pair in zip(pids, pids[1:])], run)
        self.assert_repaired(run, victims, symptoms)
        run.assert_undisturbed_result(steps)
        # What ranks kept of their communication is of the last epoch, also of those that lived through the others.
        diagnosis = subprocess.run([BINARY, "diagnose", str(run.dir), "--json"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(WORLD, json.loads(diagnosis)["reported"], diagnosis)

    def test_only_the_victim_of_a_crash_is_started_anew(self):
        faults = [f"kill:{rank}:{12 * (rank + 1)}:forward:{rank + 1}" for rank in range(4)]
        self.check(self.train(faults), [0, 1, 2, 3], {"crash"})

    def test_an_exception_and_a_stopped_rank(self):
        self.check(self.train(["exit3:2:12", "stop:1:24:update:2"]), [2, 1], {"crash", "stopped", "exit"})

    def test_a_process_that_goes_on_ten_times_does_not_grow(self):
        run = self.train([f"kill:3:{4 * number}:forward:{number}" for number in range(1, 11)])
        survivor = pids_in(run, 2)[0]
        before = held_by(survivor)
        self.assertEqual(survivor, pids_in(run, 10)[0], run)
        after = held_by(survivor)
        run.finish()
        self.assertEqual(before[:2], after[:2], run)
        self.assertLess(after[2] - before[2], 20 << 20, run)
        run.assert_undisturbed_result(2 * STEPS)

    def test_by_exec(self):
        self.check(self.train(["kill:3:9"], options=["--start-method", "exec"]), [3], {"crash"})

    def test_who_does_not_leave_is_started_anew(self):
        """Rank 1 never gives the interpreter back: whoever is blamed, it must not hold up the others."""
        run = self.train(["kill:3:12", "native-gil:1:12"])
        pids = [pids_in(run, epoch) for epoch in (1, 2)]
        run.finish()
        self.assertEqual([1, 3], changed(*pids), run)
        self.assertEqual(2, run.epoch(), run)
        run.assert_undisturbed_result(2 * STEPS)

    def test_stop_by_the_user(self):
        run = self.train(["kill:3:9"])
        pids_in(run, 2)
        run.watcher.send_signal(signal.SIGTERM)
        run.finish(1)

    def test_watcher_killed_between(self):
        run = self.train(["kill:3:9", "kill:0:30:forward:2"])
        before = pids_in(run, 2)
        run.watcher.kill()
        run.watcher.wait()
        run.resume()
        after = pids_in(run, 3)
        run.finish()
        self.assertEqual([0], changed(before, after), run)
        run.assert_undisturbed_result(2 * STEPS)


# Lines are said in one write each: print() writes the end of a line apart, and others write to the same console.
# Rank 1 fails once. Rank 0 has a child that writes, and takes whatever ends its loop for an end of its own.
OBSTINATE = '''
import os, subprocess, sys, time
import torch.distributed as dist
import lockstep

child = None

@lockstep.restartable
def train():
    global child
    dist.init_process_group("gloo")
    rank, epoch = dist.get_rank(), int(os.environ["LOCKSTEP_EPOCH"])
    if rank == 0:
        sys.stdout.write(f"rank 0 is process {os.getpid()}\\n")
    if rank == 0 and child is None:
        child = subprocess.Popen(["sh", "-c", "while sleep 0.05; do echo tick; done"])
    try:
        for step in range(40):
            time.sleep(0.05)
            lockstep.step(step)
            if rank == 1 and epoch == 1 and step == 10:
                os._exit(3)
    except:
        return "interrupted"
    return "whole"

result = train()
sys.stdout.write(f"rank {os.environ['RANK']}: {result} in epoch {os.environ['LOCKSTEP_EPOCH']}\\n")
if child is not None:
    sys.stdout.write(f"the child: {child.poll()}\\n")
    child.kill()
'''


class Obstinate(RunTest):
    def test_who_swallows_the_end_of_the_epoch_goes_on_and_so_does_its_child(self):
        script = self.folder() / "obstinate.py"
        script.write_text(OBSTINATE)
        run = Run(self, str(script), ranks=2)
        run.finish()
        told = [line for line in run.stdout().splitlines() if "tick" not in line]
        processes = {line for line in told if "process" in line}
        self.assertEqual(1, len(processes), run)
        self.assertEqual({"rank 0: whole in epoch 2", "rank 1: whole in epoch 2", "the child: None"}, set(told) - processes, run)


# Rank 1 fails once. Before the function, each rank has started a process, and made a loader, whose workers start in it.
OLDER = '''
import multiprocessing, os, sys, time
import torch.distributed as dist
from torch.utils.data import DataLoader
import lockstep

logger = multiprocessing.Process(target=time.sleep, args=(600,), daemon=True)
logger.start()
loader = DataLoader(range(8), batch_size=4, num_workers=1, persistent_workers=True)

@lockstep.restartable
def train():
    dist.init_process_group("gloo")
    rank, epoch = dist.get_rank(), int(os.environ["LOCKSTEP_EPOCH"])
    if rank == 0:
        sys.stdout.write(f"rank 0 is process {os.getpid()}\\n")
    for step in range(20):
        items = sum(len(batch) for batch in loader)
        lockstep.step(step)
        if rank == 1 and epoch == 1 and step == 10:
            os._exit(3)
        dist.barrier()
    return items

items = train()
sys.stdout.write(f"rank {os.environ['RANK']}: {items} items in epoch {os.environ['LOCKSTEP_EPOCH']}, the logger runs: {logger.is_alive()}\\n")
'''


class Older(RunTest):
    def test_children_from_before_the_function_live_on_and_loaders_from_before_it_work(self):
        script = self.folder() / "older.py"
        script.write_text(OLDER)
        run = Run(self, str(script), ranks=2)
        run.finish()
        told = run.stdout().splitlines()
        processes = {line for line in told if "process" in line}
        self.assertEqual(1, len(processes), run)
        self.assertEqual({f"rank {rank}: 8 items in epoch 2, the logger runs: True" for rank in range(2)}, set(told) - processes, run)


class OnTwoNodes(NodesTest):
    def test_only_the_victim_is_started_anew(self):
        self.start(*ddp(2 * STEPS, ["kill:3:12", "kill:0:30:forward:2"], step_time=0.1), "--restartable")
        pids = [pids_in(self.a, epoch) for epoch in (1, 2, 3)]
        self.finish()
        self.assertEqual([[3], [0]], [changed(*pair) for pair in zip(pids, pids[1:])], self.a)
        self.a.assert_undisturbed_result(2 * STEPS)


if __name__ == "__main__":
    unittest.main()
