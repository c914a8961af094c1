"""A Slurm of the test's own: controller, node daemons on this machine, and munge. Skips where there is none, and without root."""
import os
import shutil
import subprocess
import time
import unittest

from harness import RunTest, free_port, inherited

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
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=100
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000 State=UNKNOWN"


@unittest.skipUnless(os.geteuid() == 0 and all(shutil.which(program) for program in PROGRAMS), "needs root and Slurm: apt-get install slurm-wlm munge")
class SlurmTest(RunTest):
    nodes = ("n1", "n2")

    def setUp(self):
        self.base = self.folder()
        for name in (*(f"spool/{node}" for node in self.nodes), "state"):
            (self.base / name).mkdir(parents=True)
        nodes = "\n".join(NODE.format(name=node, port=free_port()) for node in self.nodes)
        (self.base / "slurm.conf").write_text(CONFIGURATION.format(base=self.base, controller=free_port(), nodes=nodes))
        self.env = {**inherited(), "SLURM_CONF": str(self.base / "slurm.conf"), "LC_ALL": "C"}
        key = self.base / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.daemon("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.base}/munge.sock", f"--pid-file={self.base}/munge.pid",
                    f"--log-file={self.base}/munge.log", f"--seed-file={self.base}/munge.seed", "--num-threads=2")
        self.until("munge", lambda: (self.base / "munge.sock").exists())
        self.daemon("slurmctld", "-D")
        for node in self.nodes:
            self.daemon("slurmd", "-D", "-N", node)
        self.until("idle nodes", lambda: self.command("sinfo", "-h", "-t", "idle", "-o", "%D") == str(len(self.nodes)))

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
