"""Under a real Slurm, started by the test: controller, two node daemons on this machine, and munge. `srun` says who is who."""
import json
import os
import shutil
import subprocess
import time
import unittest

from harness import BINARY, JOBS, PYTHON, RunTest, ddp, free_port, inherited, undisturbed

PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "scontrol")
CONFIGURATION = """
ClusterName=lockstep
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={base}/munge.sock
CredType=cred/munge
SlurmctldPort={controller}
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd.%n.pid
SlurmdSpoolDir={base}/spool/%n
SlurmdLogFile={base}/slurmd.%n.log
SlurmctldLogFile={base}/slurmctld.log
StateSaveLocation={base}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=30
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={first} CPUs=2 RealMemory=1000 State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={second} CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


@unittest.skipUnless(os.geteuid() == 0 and all(shutil.which(program) for program in PROGRAMS), "needs root and Slurm: apt-get install slurm-wlm munge")
class Slurm(RunTest):
    def setUp(self):
        self.base = self.folder()
        for name in ("spool/n1", "spool/n2", "state"):
            (self.base / name).mkdir(parents=True)
        ports = {name: free_port() for name in ("controller", "first", "second")}
        (self.base / "slurm.conf").write_text(CONFIGURATION.format(base=self.base, **ports))
        self.env = {**inherited(), "SLURM_CONF": str(self.base / "slurm.conf"), "LC_ALL": "C"}
        key = self.base / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.daemon("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.base}/munge.sock", f"--pid-file={self.base}/munge.pid",
                    f"--log-file={self.base}/munge.log", f"--seed-file={self.base}/munge.seed", "--num-threads=2")
        self.until("munge", lambda: (self.base / "munge.sock").exists())
        self.daemon("slurmctld", "-D")
        for node in ("n1", "n2"):
            self.daemon("slurmd", "-D", "-N", node)
        self.until("two idle nodes", lambda: self.command("sinfo", "-h", "-t", "idle", "-o", "%D") == "2")

    def daemon(self, *command):
        with open(self.base / f"{command[0]}.out", "ab") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env, start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)

    def command(self, *words):
        return subprocess.run(words, capture_output=True, text=True, env=self.env, check=False).stdout.strip()

    def until(self, what, condition, timeout=60):
        deadline = time.monotonic() + timeout
        while not condition():
            logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in self.base.glob("*.log"))
            self.assertLess(time.monotonic(), deadline, f"waited {timeout} s in vain for {what}\n{logs}")
            time.sleep(0.1)

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


if __name__ == "__main__":
    unittest.main()
