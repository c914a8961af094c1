"""The example manifests say what this build understands: their own command lines, tried with --dry-run."""
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

import yaml

from harness import BINARY, PYTHON, ROOT

CLUSTER = ROOT / "examples/cluster"
DOCS = ROOT / "docs/clusters.md"


class Manifests(unittest.TestCase):
    def plan(self, words, **environment):
        """What `lockstep run` would do with these words: on this machine, which has no GPU, with two ranks to a node."""
        with tempfile.TemporaryDirectory(prefix="lockstep-manifest-", dir="/tmp") as folder:
            script = pathlib.Path(folder, "train.py")
            script.write_text("")
            replaced = {"train.py": str(script), "gpu": "2", "--nproc-per-node=gpu": "--nproc-per-node=2",
                        "--checkpoint-dir=/checkpoints": f"--checkpoint-dir={folder}"}
            command = [BINARY, "run", "--dry-run", "--python", PYTHON, *(replaced.get(word, word) for word in words)]
            answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False,
                                    env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, **environment})
        self.assertEqual(0, answer.returncode, answer.stderr)
        return answer.stdout

    def assert_can_be_scraped(self, flags):
        """From another machine: not on loopback alone, and then a token is asked for."""
        self.assertIn("--metrics-port", flags)
        self.assertEqual("0.0.0.0", flags.get("--metrics-host"))
        self.assertIn("--token-file", flags)

    def test_kubernetes(self):
        service, job = yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text())
        pod, = job["spec"]["template"]["spec"]["containers"]
        name, endpoint = job["metadata"]["name"], f"{job['metadata']['name']}-0.{service['metadata']['name']}:"
        self.assertEqual(["lockstep", "run"], pod["command"])
        self.assertTrue(any(word.startswith(f"--rdzv-endpoint={endpoint}") for word in pod["args"]), pod["args"])
        self.assertEqual(("None", {"job-name": name}), (service["spec"]["clusterIP"], service["spec"]["selector"]))
        self.assertEqual(service["metadata"]["name"], job["spec"]["template"]["spec"]["subdomain"])
        self.assertIn(f"--nnodes={job['spec']['completions']}", pod["args"])
        plan = self.plan([word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in pod["args"]], JOB_COMPLETION_INDEX="1")
        self.assertRegex(plan, r"\n  rank +2\n")
        self.assert_can_be_scraped(dict(word.split("=", 1) for word in pod["args"] if "=" in word))
        volumes = {volume["name"]: volume for volume in job["spec"]["template"]["spec"]["volumes"]}
        self.assertIn("secret", next(volumes[mount["name"]] for mount in pod["volumeMounts"] if mount["mountPath"] == "/token"))
        mounts = {mount["mountPath"] for mount in pod["volumeMounts"]}
        self.assertLessEqual({"/tmp", "/checkpoints"}, mounts)  # what a read-only root needs, and --checkpoint-dir

    def test_the_exit_statuses_of_the_policy_are_those_of_the_docs(self):
        _, job = yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text())
        fails, ignores = (set().union(*(rule["onExitCodes"]["values"] for rule in job["spec"]["podFailurePolicy"]["rules"]
                                        if rule["action"] == action and "onExitCodes" in rule)) for action in ("FailJob", "Ignore"))
        self.assertEqual({3}, ignores, "all pods end so of one that is lost")
        rows = re.findall(r"^\| `?(\d+)`?[^|]*\|([^|]*)\|", DOCS.read_text(), re.MULTILINE)
        self.assertLessEqual({"0", "1", "2", "3"}, {status for status, _ in rows})
        for status, new_pod in rows:
            if int(status) in fails:
                self.assertRegex(new_pod, r"no|same", f"a new pod for status {status}")
            self.assertEqual(int(status) in ignores, "Ignore" in new_pod, f"a new pod for status {status}")

    def test_slurm(self):
        script = CLUSTER / "slurm.sbatch"
        subprocess.run(["bash", "-n", script], check=True)
        command, = re.findall(r"^srun \S+ lockstep run (.*)$", script.read_text(), re.MULTILINE)
        words = [word.replace("$SLURM_SUBMIT_DIR/checkpoints", "/tmp") for word in shlex.split(command)]
        slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NNODES": "2", "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_NODEID": "1",
                 "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
                 "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_JOB_NODELIST": "node[1-2]", "SLURMD_NODENAME": "node2"}
        self.assertRegex(self.plan(words, **slurm), r"\n  rank +2\n")
        self.assert_can_be_scraped(dict(zip(words, words[1:])))


if __name__ == "__main__":
    unittest.main()
