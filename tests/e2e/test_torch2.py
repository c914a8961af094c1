"""The same under Debian 13's torch 2.6 and Python 3.13, in a userland of its own as in a container, with the package and client library of this build."""
import json
import os
import pathlib
import shutil
import subprocess
import unittest

from harness import BINARY, QUICK_LIMITS, ROOT, STEPS, Run, RunTest, ddp
from test_hang import section_of

TRIXIE = ROOT / "tests/e2e/trixie"
PYTHON2 = str(TRIXIE / "python")
# Decays a sharded parameter where only its optimizer may write.
WRITES_TO_THE_WHOLE = """
import torch, lockstep
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor, Shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1,))
weight = torch.nn.Parameter(distribute_tensor(torch.ones(4 << 20), mesh, [Shard(0)]))
module = torch.nn.ParameterDict({"weight": weight})
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
ckpt = lockstep.Checkpoint({"module": module, "optimizer": optimizer})
ckpt.restore()
for step in range(6):
    (weight * weight).sum().backward()
    if step == 4:
        with torch.no_grad():
            weight.mul_(0.9)
    optimizer.step()
    optimizer.zero_grad()
    ckpt.step(step)
dist.destroy_process_group()
"""
SHARDED = ("--sharded", "--width", "9")  # over 4 ranks: 3, 3, 3 and 0 rows


def setUpModule():
    made = subprocess.run([TRIXIE / "make"], capture_output=True, text=True, check=False)
    if not (ROOT / ".cache/trixie/complete").exists():
        raise unittest.SkipTest(made.stderr.strip())


class Torch2(RunTest):
    def test_optimizers_have_the_hook(self):
        """Without which Checkpoint would take its other way, and these tests would say nothing new."""
        asked = "import torch; print(torch.__version__, hasattr(torch.optim.Optimizer, 'register_step_pre_hook'))"
        answer = subprocess.run([PYTHON2, "-c", asked], capture_output=True, text=True, check=True)
        self.assertRegex(answer.stdout, r"^2\..* True$")

    def test_crash(self):
        """From the zygote. Rank 0 holds the rendezvous store, which torch has without libuv only where it is told so."""
        run = Run(self, "ddp.py", *ddp(faults=["kill:1:5:forward:1", "kill:0:10:update:2"]), python=PYTHON2)
        run.finish()
        self.assert_repaired(run, [1, 0], {"crash"})
        self.assertNotIn("workers start by exec", run.stderr(), run)
        self.assertEqual(1, run.stderr().count("rank 0 hosts the rendezvous store: "), run)
        run.assert_undisturbed_result(python=PYTHON2)

    def test_crash_by_exec(self):
        run = Run(self, "ddp.py", *ddp(faults=["kill:2:7:saved:1"]), python=PYTHON2, options=["--start-method", "exec"])
        run.finish()
        self.assert_repaired(run, [2], {"crash"})
        run.assert_undisturbed_result(python=PYTHON2)

    def test_sharded_by_fsdp(self):
        """DTensors of uneven shards: parameters, and the optimizer's state. Each step ends with an evaluation."""
        run = Run(self, "ddp.py", *ddp(faults=["kill:3:6:forward:1", "kill:1:12:saved:2"]), *SHARDED, python=PYTHON2)
        run.finish()
        self.assert_repaired(run, [3, 1], {"crash"})
        run.assert_undisturbed_result(python=PYTHON2, words=SHARDED)

    def test_write_to_a_sharded_parameter_is_noticed(self):
        script = self.folder() / "writes.py"
        script.write_text(WRITES_TO_THE_WHOLE)
        run = Run(self, str(script), ranks=1, python=PYTHON2)
        run.finish()
        self.assertIn("module.weight was written between step() and optimizer.step()", run.stderr(), run)

    def test_hang_is_explained(self):
        """Python's stack and the native one, whose symbols are those of the libraries in there."""
        run = Run(self, "ddp.py", *ddp(faults=["native:2:5", "gil:1:10:forward:2"]), python=PYTHON2, options=QUICK_LIMITS)
        run.finish()
        self.assert_repaired(run, [2, 1], {"not_entered", "spinning"})
        self.assertIn("in block_in_c", section_of(2, run.stacks(1)), run)
        self.assertRegex(section_of(2, run.stacks(1)), r"pthread_mutex_lock.*\(libc\.so\.6\)", run)
        self.assertIn("in spin_in_python", section_of(1, run.stacks(2)), run)
        run.assert_undisturbed_result(python=PYTHON2)

    def test_through_torch_distributed_checkpoint_and_back(self):
        """The state goes on disk, into a dcp folder and back from it; nothing else is left of the first run."""
        directory, folder = (self.folder() / name for name in ("checkpoints", "dcp"))
        disk = ("--checkpoint-dir", str(directory))
        Run(self, "ddp.py", *ddp(steps=STEPS // 2), *SHARDED, python=PYTHON2, options=disk).finish()
        self.convert("export", directory, "--to", folder)
        self.assertTrue((folder / ".metadata").exists(), os.listdir(folder))
        shutil.rmtree(directory)
        self.convert("import", directory, "--from", folder)
        run = Run(self, "ddp.py", *ddp(), *SHARDED, python=PYTHON2, options=disk)
        run.finish()
        self.assertEqual(STEPS // 2, min(line["step"] for line in run.steps()), run)
        run.assert_undisturbed_result(python=PYTHON2, words=SHARDED)

    def convert(self, verb, directory, option, folder):
        command = [BINARY, "checkpoint", verb, directory, option, "dcp", folder, "--python", PYTHON2]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(0, answer.returncode, answer.stderr)

    def test_example(self):
        results = [self.example(fault) for fault in (False, True)]
        self.assertEqual(*results)

    def example(self, fault, steps=40):
        """What examples/train_gpt.py ends with."""
        out, log = (self.folder() / name for name in ("result.json", "steps.jsonl"))
        words = ["--steps", str(steps), "--out", str(out), "--log", str(log)]
        run = Run(self, str(ROOT / "examples/train_gpt.py"), *words, ranks=2, python=PYTHON2)
        if fault:
            victim = run.wait("two workers", lambda: len(run.pids()) == 2 and run.pids()[1])  # asked early: the job is short
            run.wait("ten steps", lambda: log.exists() and len(log.read_text().splitlines()) >= 10)
            os.kill(victim, 9)
        run.finish()
        self.assertEqual([["1"]] if fault else [], run.suspects(), run)
        return json.loads(pathlib.Path(out).read_text())


if __name__ == "__main__":
    unittest.main()
