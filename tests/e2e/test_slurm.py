"""Under a real Slurm, started by the test: `srun` says who is who."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import unittest

from harness import BINARY, JOBS, PYTHON, STEPS, ddp, free_port, kill, undisturbed
from slurm import SlurmTest


class Slurm(SlurmTest):
    def srun(self, *words, options=()):
        """Two nodes with two ranks each; nothing but Slurm says how many nodes there are and which rank each has."""
        log = open(self.base / "srun.txt", "wb")
        self.addCleanup(log.close)
        run = [BINARY, "run", "--no-view", "--python", PYTHON, "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--nproc-per-node", "2",
               "--run", f"{self.base}/$SLURM_NODEID", *options, str(JOBS / "ddp.py"), *words]
        shell = "exec " + " ".join(run)  # each task has a run directory of its own
        return subprocess.Popen(["srun", "-N2", "--ntasks-per-node=1", "--cpus-per-task=1", "sh", "-c", shell], stdin=subprocess.DEVNULL,
                                stdout=log, stderr=log, env=self.env, cwd=self.base)

    def said(self):
        return (self.base / "srun.txt").read_text(errors="replace")

    def test_ranks_and_names_are_slurms(self):
        out = self.base / "out.json"
        job = self.srun("--out", str(out), *ddp(faults=["kill:3:10"]))
        self.assertEqual(0, job.wait(120), self.said())
        self.assertIn("2 of 2 nodes are here: n", self.said())
        self.assertIn("rank 3 was killed by a signal", self.said())
        self.assertEqual(undisturbed(), json.loads(out.read_text()), self.said())

    def test_a_fleet_is_spread_over_tasks(self):
        for number in range(9):
            fault = ["--fault", "worker:dp=1,stage=0,factor=1.5"] if number % 3 else []
            subprocess.run([BINARY, "simulate", "trace", f"{self.base}/fleet/{number}", "--steps", "4", "--seed", str(number), *fault],
                           check=True, stdout=subprocess.DEVNULL)
        explain = [BINARY, "explain", "fleet", "--json"]
        alone = subprocess.run(explain, cwd=self.base, check=True, capture_output=True, text=True).stdout
        spread = subprocess.run(["srun", "-N2", "-n4", *explain, "--shard", "auto", "--out", "why"], env=self.env, cwd=self.base,
                                capture_output=True, text=True, timeout=120, check=True)
        self.assertEqual(alone, spread.stdout)  # of the task that ended last
        self.assertEqual(3, spread.stderr.count("are still at work"), spread.stderr)
        self.assertEqual(alone, (self.base / "why/fleet.json").read_text())

    def test_the_time_is_nearly_up(self):
        """USR1 to the step, as `--signal=USR1@60` sends it: the job is stopped, with a grace, and the next one goes on from the disk."""
        disk, log, out = ["--checkpoint-dir", str(self.base / "saved")], self.base / "steps.jsonl", self.base / "out.json"
        job = self.srun("--log", str(log), *ddp(600, step_time=0.1), options=disk)
        self.until("some steps", lambda: log.exists() and len(log.read_text().splitlines()) > 5)
        number = self.command("squeue", "-h", "-o", "%i")
        subprocess.run(["scancel", "--signal=USR1", f"{number}.0"], env=self.env, check=True)
        self.assertNotEqual(0, job.wait(60), self.said())
        self.assertIn("stopped by SIGUSR1", self.said())
        last = json.loads(log.read_text().splitlines()[-1])["step"]
        saved = self.checkpoints()
        self.assertEqual(1, len(saved), self.said())
        self.assertGreaterEqual(saved[0], last - 2, self.said())
        shutil.rmtree(self.base / "0")
        shutil.rmtree(self.base / "1")
        log.unlink()
        again = self.srun("--log", str(log), "--out", str(out), *ddp(saved[0] + 5), options=disk)
        self.assertEqual(0, again.wait(120), self.said())
        self.assertEqual(saved[0] + 1, json.loads(log.read_text().splitlines()[0])["step"], self.said())
        self.assertEqual(undisturbed(saved[0] + 5), json.loads(out.read_text()), self.said())

    def checkpoints(self):
        """Their steps, all whole."""
        verified = subprocess.run([BINARY, "checkpoint", "verify", str(self.base / "saved"), "--json"], capture_output=True, text=True, timeout=60)
        self.assertEqual(0, verified.returncode, verified.stdout + verified.stderr)
        listed = subprocess.run([BINARY, "checkpoint", "list", str(self.base / "saved"), "--json"], capture_output=True, text=True, timeout=60)
        return [one["step"] for one in json.loads(listed.stdout)["checkpoints"]]


NODE = """#!/bin/sh
exec {binary} run --no-view --python {python} --rdzv-endpoint 127.0.0.1:{port} --nproc-per-node 2 --run {base}/${{SLURM_RESTART_COUNT:-0}}-$SLURM_NODEID \\
  {options} {script} {words}
"""


class Replacement(SlurmTest):
    """A job without a standby: Slurm is asked for a machine."""
    nodes = ("n1", "n2", "n3")

    def prepare(self, steps, *options):
        self.out, self.log = self.base / "out.json", self.base / "steps.jsonl"
        self.env["XDG_RUNTIME_DIR"] = str(self.base)  # of those that are asked for
        words = ["--out", str(self.out), "--log", str(self.log), *ddp(steps, step_time=0.05)]
        task = self.base / "node.sh"
        task.write_text(NODE.format(binary=BINARY, python=PYTHON, port=free_port(), base=self.base, script=JOBS / "ddp.py",
                                    options=" ".join(["--cluster", "slurm", *options]), words=" ".join(words)))
        task.chmod(0o755)
        job = self.base / "job.sh"
        job.write_text(f"#!/bin/sh\nsrun --kill-on-bad-exit=0 {task}\n")
        answer = self.command("sbatch", "--parsable", "--requeue", "--open-mode=append", "-N2", "-w", "n1,n2", "--mem=0", "--ntasks-per-node=1",
                              "--output=job.txt", "--chdir", str(self.base), str(job))
        self.assertRegex(answer, r"^\d+$")
        self.addCleanup(self.command, "scancel", answer)
        return answer

    def said(self):
        return "\n".join(path.read_text(errors="replace") for path in self.base.glob("*.txt")) + "\n".join(
            path.read_text(errors="replace") for path in self.base.glob("slurm-*.out"))

    def steps(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def wait_for_step(self, step, epoch):
        self.until(f"step {step} in epoch {epoch}\n{self.said()}", lambda: any(line["step"] >= step and line["epoch"] >= epoch for line in self.steps()))

    def ask(self, subcommand, run="0-0"):
        answer = subprocess.run([BINARY, subcommand, "--run", str(self.base / run), "--json"], capture_output=True, text=True, timeout=30)
        self.assertEqual(0, answer.returncode, answer.stderr)
        return json.loads(answer.stdout)

    def texts(self):
        return [action["text"] for incident in self.ask("incidents") for action in incident["actions"]]

    def power_off(self, host):
        """All that the job has there."""
        ours = (f"SLURMD_NODENAME={host}".encode(), f"SLURM_CONF={self.base}/slurm.conf".encode())
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            try:
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if all(variable in environment for variable in ours):
                kill(pid, signal.SIGKILL)

    def assert_undisturbed_result(self, steps):
        self.assertEqual(undisturbed(steps), json.loads(self.out.read_text()), self.said())

    def test_a_lost_node_is_replaced_by_one_that_is_asked_for(self):
        self.prepare(3 * STEPS)
        self.wait_for_step(5, epoch=1)
        self.power_off("n2")
        self.wait_for_step(6, epoch=2)
        request = re.search(r"asked Slurm for a machine: job (\d+)", "\n".join(self.texts()))
        self.assertIsNotNone(request, self.texts())
        evicted, = self.ask("status")["evicted"]
        self.assertEqual("n2", evicted["name"])
        shown = self.command("scontrol", "--oneliner", "show", "job", request[1])
        self.assertIn(f"NodeList={evicted['standby']} ", shown)
        self.assertIn("mem=1000M,", shown)  # all that a node has, as the job's; 100M would be the default
        self.until("the end", lambda: not self.command("squeue", "-h"))
        status = self.ask("status")
        self.assertEqual("completed", status["verdict"], self.said())
        self.assertNotRegex(self.command("scontrol", "show", "node", "n2"), r"State=\S*DRAIN")  # nobody says that it is broken
        self.assert_undisturbed_result(3 * STEPS)
        self.drain("n3")

    def drain(self, node):
        """By the driver itself: what makes a coordinator want one, unit tests have."""
        test = pathlib.Path(BINARY).parent / "schedule_slurm_driver_test"
        done = subprocess.run([test, "--gtest_filter=RealSlurm.*"], env={**self.env, "LOCKSTEP_TEST_SLURM_NODE": node}, capture_output=True, text=True, timeout=60)
        self.assertEqual(0, done.returncode, done.stdout)
        shown = self.command("scontrol", "--oneliner", "show", "node", node)
        self.assertRegex(shown, r"State=\S*DRAIN")
        self.assertIn("Reason=lockstep: incident 3: gpu_xid of gpu3: Xid 79, 'off the bus' [", shown)

    def test_nobody_comes(self):
        """Then the job is begun anew, and goes on from the disk."""
        policy = self.base / "policy.toml"
        policy.write_text("[nodes]\nwait_s = 2\n")
        self.command("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=not for this test")
        job = self.prepare(3 * STEPS, "--policy", str(policy), "--checkpoint-dir", str(self.base / "saved"), "--checkpoint-interval-s", "0.2")
        self.until("a checkpoint on disk", lambda: any((self.base / "saved").glob("*/manifest.json")))
        self.power_off("n2")
        self.until("the job to begin anew", lambda: (self.base / "1-0").exists(), timeout=100)
        self.until("the end", lambda: not self.command("squeue", "-h"), timeout=100)
        self.assertIn("asked Slurm for a machine: job", self.said())
        self.assertIn("another machine was asked for, and none came", self.said())
        self.assertIn("JobState=COMPLETED", self.command("scontrol", "--oneliner", "show", "job", job), self.said())
        self.assertIn("Restarts=1", self.command("scontrol", "--oneliner", "show", "job", job))
        self.assert_undisturbed_result(3 * STEPS)


if __name__ == "__main__":
    unittest.main()
