"""The same under Debian 13's torch 2.6 and Python 3.13, in a userland of its own as in a container, with the package and client library of this build."""
import json
import os
import pathlib
import shutil
import subprocess
import unittest

import test_explain_torch
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
# Rank 0 hosts the store here, and somebody else has its port: in the first epoch the script itself.
TAKES_THE_PORT = """
import os, socket
import torch.distributed as dist

if os.environ["RANK"] == "0" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    other = socket.create_server(("", int(os.environ["MASTER_PORT"])))
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""
# Starts a thread at its import, which an import of the compiler attempts.
UNSAFE_GMPY2 = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
raise ImportError("none here")
"""
HAS_COMPILER = """
import sys
collected = "liblockstep-gloo" in open("/proc/self/maps").read()
compiler = "there" if "torch._dynamo" in sys.modules else "missing"
print(f"the compiler is {compiler}, {'collected' if collected else 'not seen'}\\n", end="")  # in one write
"""
SHARDED = ("--sharded", "--width", "9")  # over 4 ranks: 3, 3, 3 and 0 rows


def setUpModule():
    made = subprocess.run([TRIXIE / "make"], capture_output=True, text=True, check=False)
    if not (ROOT / ".cache/trixie/complete").exists():
        raise unittest.SkipTest(made.stderr.strip())


class Torch2(RunTest):
    python = PYTHON2

    def test_optimizers_have_the_hook(self):
        """Without which Checkpoint would take its other way, and these tests would say nothing new."""
        asked = "import torch; print(torch.__version__, hasattr(torch.optim.Optimizer, 'register_step_pre_hook'))"
        answer = subprocess.run([PYTHON2, "-c", asked], capture_output=True, text=True, check=True)
        self.assertRegex(answer.stdout, r"^2\..* True$")

    def test_crash(self):
        """From the zygote. Rank 0 holds the rendezvous store, which torch has without libuv only where it is told so."""
        run = Run(self, "ddp.py", *ddp(faults=["kill:1:5:forward:1", "kill:0:10:update:2"]))
        run.finish()
        self.assert_repaired(run, [1, 0], {"crash"})
        self.assertNotIn("workers start by exec", run.stderr(), run)
        self.assertEqual(1, run.stderr().count("rank 0 hosts the rendezvous store: "), run)
        run.assert_undisturbed_result()

    def test_the_compiler_is_imported_once(self):
        """Not by each worker, unless its import would make forks unsafe."""
        for gmpy2, word in (("", "there"), (UNSAFE_GMPY2, "missing")):
            with self.subTest(word):
                folder = self.folder()
                (folder / "script.py").write_text(HAS_COMPILER)
                if gmpy2:
                    (folder / "gmpy2.py").write_text(gmpy2)
                run = Run(self, str(folder / "script.py"), env={"PYTHONPATH": str(folder)})
                run.finish()
                self.assertEqual(4, run.stdout().count(f"the compiler is {word}, collected\n"), run)
                self.assertNotIn("workers start by exec", run.stderr(), run)

    def test_crash_by_exec(self):
        run = Run(self, "ddp.py", *ddp(faults=["kill:2:7:saved:1"]), options=["--start-method", "exec"])
        run.finish()
        self.assert_repaired(run, [2], {"crash"})
        run.assert_undisturbed_result()

    def test_a_port_that_is_taken_costs_no_restart(self):
        script = self.folder() / "train.py"
        script.write_text(TAKES_THE_PORT)
        run = Run(self, script, ranks=2, options=["--max-restarts", "0"])
        run.finish()
        self.assertEqual(2, run.epoch(), run)
        self.assertEqual([["0"]], run.suspects(), run)
        self.assertIn("not charged, for its port was taken", run.stderr(), run)

    def test_sharded_by_fsdp(self):
        """DTensors of uneven shards: parameters, and the optimizer's state. Each step ends with an evaluation."""
        run = Run(self, "ddp.py", *ddp(faults=["kill:3:6:forward:1", "kill:1:12:saved:2"]), *SHARDED)
        run.finish()
        self.assert_repaired(run, [3, 1], {"crash"})
        run.assert_undisturbed_result(words=SHARDED)

    def test_write_to_a_sharded_parameter_is_noticed(self):
        script = self.folder() / "writes.py"
        script.write_text(WRITES_TO_THE_WHOLE)
        run = Run(self, str(script), ranks=1)
        run.finish()
        self.assertIn("module.weight was written between step() and optimizer.step()", run.stderr(), run)

    def test_hang_is_explained(self):
        """Python's stack and the native one, whose symbols are those of the libraries in there."""
        run = Run(self, "ddp.py", *ddp(faults=["native:2:5", "gil:1:10:forward:2"]), options=QUICK_LIMITS)
        run.finish()
        self.assert_repaired(run, [2, 1], {"not_entered", "spinning"})
        self.assertIn("in block_in_c", section_of(2, run.stacks(1)), run)
        self.assertRegex(section_of(2, run.stacks(1)), r"pthread_mutex_lock.*\(libc\.so\.6\)", run)
        self.assertIn("in spin_in_python", section_of(1, run.stacks(2)), run)
        run.assert_undisturbed_result()

    def test_through_torch_distributed_checkpoint_and_back(self):
        """The state goes on disk, into a dcp folder and back from it; nothing else is left of the first run."""
        directory, folder = (self.folder() / name for name in ("checkpoints", "dcp"))
        disk = ("--checkpoint-dir", str(directory))
        Run(self, "ddp.py", *ddp(steps=STEPS // 2), *SHARDED, options=disk).finish()
        self.convert("export", directory, "--to", folder)
        self.assertTrue((folder / ".metadata").exists(), os.listdir(folder))
        shutil.rmtree(directory)
        self.convert("import", directory, "--from", folder)
        run = Run(self, "ddp.py", *ddp(), *SHARDED, options=disk)
        run.finish()
        self.assertEqual(STEPS // 2, min(line["step"] for line in run.steps()), run)
        run.assert_undisturbed_result(words=SHARDED)

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
        run = Run(self, str(ROOT / "examples/train_gpt.py"), *words, ranks=2)
        if fault:
            victim = run.wait("two workers", lambda: len(run.pids()) == 2 and run.pids()[1])  # asked early: the job is short
            run.wait("ten steps", lambda: log.exists() and len(log.read_text().splitlines()) >= 10)
            os.kill(victim, 9)
        run.finish()
        self.assertEqual([["1"]] if fault else [], run.suspects(), run)
        return json.loads(pathlib.Path(out).read_text())


class Profile2(test_explain_torch.RealProfile):  # told in nanoseconds
    python = PYTHON2


if __name__ == "__main__":
    unittest.main()
