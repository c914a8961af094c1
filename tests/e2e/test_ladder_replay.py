"""The rung of the ladder that replays: nodes, which are folders of one machine here, with one rank each."""
import json
import shutil
import subprocess
import unittest

from harness import BINARY, JOBS, ROOT, STEPS, Run, RunTest, children, ddp, free_port

LONG = 2 * STEPS
# What the job itself shows of the machine of rank 1: its process dies, in two epochs one after the other.
FAULTS = ["kill:1:8:forward:1", "kill:1:16:forward:2"]


class LadderReplay(RunTest):
    def coordinate(self, *words, policy_text=""):
        """With a policy whose ladder gets to the replay at the second fault."""
        self.lead_dir, self.port = self.folder() / "lead", free_port()
        policy = self.folder() / "policy.toml"
        policy.write_text("[ladder]\ndiagnose = false\nrollback = false\nreplay_within_s = 240\n" + policy_text)
        self.lead_by("--listen", f"127.0.0.1:{self.port}", "--run", str(self.lead_dir), "--policy", str(policy), *words)

    def lead_by(self, *words):
        self.coordinator = subprocess.Popen([BINARY, "coordinator", "--no-view", *words], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.coordinator.wait)
        self.addCleanup(self.coordinator.kill)

    def node(self, name, script, rank=None, env=None, faults=FAULTS, ranks=1, words=()):
        place = [] if rank is None else ["--node-rank", str(rank)]
        options = ["--coordinator", f"127.0.0.1:{self.port}", "--node-name", name, *place, *words]
        return Run(self, script, *ddp(LONG, faults, step_time=0.1), ranks=ranks, options=options, env=env)

    def lead(self, subcommand, *words):
        answer = subprocess.run([BINARY, subcommand, *words, "--run", str(self.lead_dir), "--json"], capture_output=True, text=True, timeout=30)
        self.assertEqual(0, answer.returncode, answer.stderr)
        return json.loads(answer.stdout)

    def replayed(self, incident=2):
        """What the incident says of it."""
        why = self.lead("why", str(incident))
        texts = [one["text"] for one in self.lead("incidents")[incident - 1]["actions"] if one["text"].startswith("replay: ")]
        self.assertEqual(1, len(texts), why)
        return why, texts[0]

    def name_and_replace(self, bad, script="ddp_replayed.py", env=None, faults=FAULTS, **how):
        """The reason for which the machine of node b went."""
        self.coordinate("--nnodes", "4", "--standbys", "1")
        env = env or {}
        runs = [self.node(name, script, rank, env={**env, "LOCKSTEP_TEST_BAD": bad} if name == "b" else env, faults=faults, **how)
                for rank, name in enumerate("abcd")]
        runs[0].wait_for_step(1)
        standby = self.node("s", script, env=env, faults=faults, **how)
        bad = runs.pop(1)
        bad.watcher.wait(120)  # its place is another's
        for run in (*runs, standby):
            run.finish()
        self.assertEqual(0, self.coordinator.wait(20))
        why, text = self.replayed()
        self.assertEqual(["replay", "evict"], [one["rung"] for one in why["decisions"]], why)
        self.assertIn("4 nodes replayed the script in 3 rounds, 5 runs", text)
        self.assertEqual([("b", "s")], [(one["name"], one["standby"]) for one in self.lead("status")["evicted"]])
        self.assertTrue([*(bad.dir / "incident_2/replay").glob("run1_rank*.jsonl")], bad)
        bad.assert_nothing_left()
        if how.get("ranks", 1) == 1:  # as the job that it is held against
            runs[0].assert_undisturbed_result(LONG)
        return why["decisions"][1]["reason"]

    def test_the_machine_that_computes_wrong_bits_is_named_and_replaced(self):
        self.assertIn("node b (rank 1 of its group): local gradient 0 of step 0 differs from 3 of 4", self.name_and_replace("bits"))

    def test_a_machine_of_two_ranks_that_run_a_module(self):
        faults = ["kill:3:8:forward:1", "kill:3:16:forward:2"]
        reason = self.name_and_replace("bits", "ddp_replayed", {"PYTHONPATH": str(JOBS)}, faults, ranks=2, words=["-m"])
        self.assertRegex(reason, "node b .*local gradient 0 of step 0 differs")

    def test_the_machine_whose_ranks_die_is_named_and_replaced(self):
        self.assertIn("node b (rank 1 of its group) was killed by Killed (signal 9)", self.name_and_replace("dies"))

    def test_the_version_that_runs_is_replayed(self):
        versions = [self.folder(), self.folder()]
        for number, version in enumerate(versions):
            for path in [*JOBS.glob("*.py"), ROOT / "examples/fingerprint.py"]:
                shutil.copy(path, version)
            (version / "ddp_replayed.py").write_text(f"print('this is version {number}')\n" + (JOBS / "ddp_replayed.py").read_text())
        self.coordinate("--nnodes", "2", policy_text="[update]\nsteps = 1\n")
        faults = ["kill:1:24:forward:2", "kill:1:32:forward:3"]  # epoch 2 begins with the update
        runs = [self.node(name, versions[0] / "ddp_replayed.py", rank, faults=faults) for rank, name in enumerate("ab")]
        runs[0].wait_for_step(1)
        self.lead("update", "--code", str(versions[1]), "--now")
        for run in runs:
            run.finish()
        self.assertEqual(0, self.coordinator.wait(20))
        _, text = self.replayed(incident=3)
        self.assertEqual("replay: nothing found; 2 nodes replayed the script in 2 rounds, 4 runs", text)
        for run in runs:
            log, *_ = (run.dir / "incident_3/replay").glob("*.log")
            self.assertIn("this is version 1", log.read_text())

    def test_healthy_machines_replay_our_own_model_and_the_job_goes_on(self):
        self.coordinate("--nnodes", "2")
        runs = [self.node(name, "ddp.py", rank) for rank, name in enumerate("ab")]
        for run in runs:
            run.finish()
        self.assertEqual(0, self.coordinator.wait(20))
        why, text = self.replayed()
        self.assertEqual("replay: nothing found; 2 nodes replayed a model of ours in 2 rounds, 4 runs", text)
        self.assertEqual(["replay", "reattempt"], [one["rung"] for one in why["decisions"]], why)
        self.assertEqual([], self.lead("status").get("evicted", []))

    def in_a_search(self, env=None):
        self.coordinate("--nnodes", "2")
        runs = [self.node(name, "ddp.py", rank, env=env) for rank, name in enumerate("ab")]
        runs[0].wait("ranks of the replay", lambda: any("replay-ranks" in line for line in runs[0].processes().values()))
        return runs

    def test_a_coordinator_that_dies_in_a_search_makes_it_anew(self):
        runs = self.in_a_search()
        self.coordinator.kill()
        self.coordinator.wait()
        self.lead_by("--resume", str(self.lead_dir))
        for run in runs:
            run.finish()
        self.assertEqual(0, self.coordinator.wait(20))
        self.assertIn("nothing found; 2 nodes replayed a model of ours in 2 rounds", self.replayed()[1])

    def test_an_agent_that_dies_in_a_search_ends_it(self):
        runs = self.in_a_search()
        runs[1].watcher.kill()
        runs[1].watcher.wait()
        runs[1].resume()
        for run in runs:
            run.finish()
        self.assertEqual(0, self.coordinator.wait(20))
        self.assertEqual([], self.lead("status").get("evicted", []))

    def test_a_stop_ends_the_replay(self):
        """Also the import of torch that it has begun with, which takes longer here than the run may leave something behind."""
        folder = self.folder()
        (folder / "sitecustomize.py").write_text(
            "import os, sys, time\nif 'lockstep._zygote' in sys.orig_argv and b'replay-ranks' in open(f'/proc/{os.getppid()}/cmdline', 'rb').read():\n    time.sleep(60)\n")
        runs = self.in_a_search({"PYTHONPATH": str(folder)})
        for run in runs:
            run.wait("its import", lambda run=run: any("replay-ranks" in line and children(pid) for pid, line in run.processes().items()))
        runs[0].watcher.terminate()
        for run in runs:
            run.finish(1, timeout=30)
        self.assertEqual(1, self.coordinator.wait(20))


if __name__ == "__main__":
    unittest.main()
