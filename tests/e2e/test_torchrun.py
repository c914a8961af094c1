"""`lockstep run` takes torchrun's command line, and the script can't tell the difference."""
import json
import os
import re
import signal
import socket
import subprocess
import unittest

from harness import BINARY, PYTHON, ROOT, Run, RunTest, ddp, free_port, inherited

ENVIRONMENT = '''
import json, os, sys
with open(f"{sys.argv[1]}/{os.environ['RANK']}.json", "w") as file:
    json.dump(dict(os.environ), file)
'''
# Of the run, or of our own and documented.
OURS = ("LOCKSTEP_", "PYTHONPATH")

RECORDED = '''
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record

def work():
    raise ValueError("a bad batch\\nsecond line")

@record
def main():
    if os.environ["RANK"] == "1":
        work()
    import time
    time.sleep(600)

main()
'''

# In the manner of torch's elastic examples: it keeps its own snapshot and knows nothing of Lockstep.
ELASTIC = '''
import os, signal, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder, strike = sys.argv[1:]
dist.init_process_group("gloo")
rank, again = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
snapshot, begin = f"{folder}/snapshot.pt", 0
if os.path.exists(snapshot):
    state = torch.load(snapshot)
    model.module.load_state_dict(state["model"])
    begin = state["epoch"] + 1
for epoch in range(begin, 6):
    model(torch.full((2, 4), float(epoch + rank))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "epoch": epoch}, snapshot + ".next")
        os.replace(snapshot + ".next", snapshot)
        print(f"epoch {epoch} restarts {again}", flush=True)
    dist.barrier()
    if epoch == 2 and again == 0 and rank == 1:
        if strike == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("a device went away")
'''

HEARS_SIGNALS = '''
import os, signal, sys, time

def heard(number, frame):
    with open(f"{sys.argv[1]}/heard.{os.environ['RANK']}", "w") as file:
        file.write(str(number))
    sys.exit(0)

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, heard)
open(f"{sys.argv[1]}/ready.{os.environ['RANK']}", "w").close()
while True:
    time.sleep(1)
'''


SAVES_WHEN_ASKED_TO_END = '''
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader

asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
loader = DataLoader(range(100_000), num_workers=2)
for batch in loader:
    open(f"{sys.argv[1]}/ready.{os.environ['RANK']}", "w").close()
    time.sleep(0.02)
    if asked:
        break
for _ in range(20):  # what a save takes
    time.sleep(0.05)
open(f"{sys.argv[1]}/saved.{os.environ['RANK']}", "w").close()
'''


class TorchrunTest(RunTest):
    maxDiff = None

    def script(self, text, name="train.py", mode=0o644):
        """Several ranks share one unbuffered pipe, and print() writes the end of a line apart: they say a line in one write."""
        path = self.folder() / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def output_folder(self):
        folder = self.folder()
        folder.chmod(0o777)
        return folder


class Environment(TorchrunTest):
    """The same script under torch.distributed.run and under `lockstep run`, compared variable by variable."""

    BY_FORM = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE"}  # differ from run to run
    OTHERWISE = {}  # than under torchrun, as is documented
    OPTIONS = ["--nproc_per_node", "2", "--role", "trainer", "--rdzv_id", "job7", "--max_restarts", "3"]

    def under_torchrun(self, script, logs, port):
        out = self.output_folder()
        command = [self.python, str(ROOT / "bench/torchrun.py"), *self.OPTIONS, "--master_port", str(port), "--log_dir", logs,
                   script, str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**inherited(), "HOME": "/tmp"})
        self.assertEqual(0, done.returncode, done.stderr)
        return self.seen(out)

    def under_lockstep(self, script, logs, port, method):
        out = self.output_folder()
        run = Run(self, script, str(out), ranks=2, env={"HOME": "/tmp"},
                  options=[*self.OPTIONS[2:], "--master_port", str(port), "--log_dir", logs, "--start-method", method])
        run.finish()
        self.assertIn("OMP_NUM_THREADS", run.stderr(), run)
        return self.seen(out)

    def seen(self, folder):
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]

    def assert_same_as_torchrun(self, method):
        script, logs, ports = self.script(ENVIRONMENT), [str(self.output_folder()) for _ in range(2)], [free_port() for _ in range(2)]
        expected = self.under_torchrun(script, logs[0], ports[0])
        found = self.under_lockstep(script, logs[1], ports[1], method)
        for rank in range(2):
            with self.subTest(rank=rank):
                self.assert_same(expected[rank], found[rank], *ports)
                for folder, one in ((logs[0], expected[rank]), (logs[1], found[rank])):
                    form = f"{re.escape(folder)}/job7_[^/]+/attempt_0/{rank}/error.json"
                    self.assertRegex(one["TORCHELASTIC_ERROR_FILE"], f"^{form}$")
                    self.assertTrue(os.path.isdir(os.path.dirname(one["TORCHELASTIC_ERROR_FILE"])))

    def test_same_as_torchrun_by_exec(self):
        self.assert_same_as_torchrun("exec")

    def test_same_as_torchrun_from_the_zygote(self):
        self.assert_same_as_torchrun("zygote")

    def assert_same(self, expected, found, torchrun_port, our_port):
        self.assertEqual(str(torchrun_port), expected["MASTER_PORT"])
        self.assertEqual(str(our_port), found["MASTER_PORT"])
        kept = [{name: value for name, value in one.items() if name not in self.BY_FORM and not name.startswith(OURS)}
                for one in ({**expected, **self.OTHERWISE}, found)]
        self.assertEqual(*kept)
        self.assertEqual("trainer", found["ROLE_NAME"])
        self.assertEqual("job7", found["TORCHELASTIC_RUN_ID"])

    def test_variables_instead_of_flags(self):
        out, package = self.output_folder(), self.folder()
        (package / "probe.py").write_text(ENVIRONMENT)
        run = Run(self, "probe", str(out), ranks=2, env={
            "PYTHONPATH": str(package), "PET_MODULE": "1", "PET_ROLE": "of-the-variable", "PET_MAX_RESTARTS": "7",
            "PET_RDZV_ID": "mine", "PET_NPROC_PER_NODE": "5", "PET_STANDALONE": "0"})
        run.finish()
        for one in self.seen(out):
            self.assertEqual(["of-the-variable", "7", "mine", "2"], [one[name] for name in (
                "ROLE_NAME", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "WORLD_SIZE")], run)

    def test_virtual_local_rank(self):
        out = self.output_folder()
        run = Run(self, self.script(ENVIRONMENT), str(out), ranks=2, options=["--virtual-local-rank"],
                  env={"CUDA_VISIBLE_DEVICES": "3,5"})
        run.finish()
        self.assertEqual([("0", "3"), ("0", "5")],
                         [(one["LOCAL_RANK"], one["CUDA_VISIBLE_DEVICES"]) for one in self.seen(out)], run)


class CommandLines(TorchrunTest):
    def test_a_whole_one(self):
        """What has no effect says so, and the job is a real one."""
        run = Run(self, "ddp.py", *ddp(5), ranks=2, options=[
            "--standalone", "--nnodes=1:2", "--rdzv_backend=c10d", "--rdzv_conf", "timeout=60", "--monitor_interval=0.1",
            "--start_method=spawn", "--max_restarts=3"])
        run.finish()
        for flag in ("nnodes", "rdzv-backend", "rdzv-conf", "monitor-interval", "start-method"):
            self.assertIn(f"--{flag} ", run.stderr(), run)
        self.assertIn("completed", run.stderr(), run)

    def test_module(self):
        package = self.folder()
        (package / "job").mkdir()
        (package / "job/train.py").write_text("import sys\nsys.stdout.write(f'module {__name__} {sys.argv[1:]}\\n')\n")
        run = Run(self, "job.train", "--local", "${local_rank}", ranks=2, options=["-m"],
                  env={"PYTHONPATH": str(package)})
        run.finish()
        for rank in range(2):
            self.assertIn(f"module __main__ ['--local', '{rank}']", run.stdout(), run)

    def test_marks_and_macros(self):
        script = self.script("import sys\nsys.stdout.write(f'arguments {sys.argv[1:]}\\n')\n")
        run = Run(self, script, "--", "$local_rank", "cost$$5", "--", "--nnodes", ranks=2, options=["-r=0", "--"])
        run.finish()
        for rank in range(2):
            self.assertIn(f"arguments ['{rank}', 'cost$5', '--', '--nnodes']", run.stdout(), run)

    def test_a_program_that_is_not_python(self):
        script = self.script('#!/bin/sh\necho "shell $1 of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT"\n', "job.sh", 0o755)
        port = free_port()
        run = Run(self, script, "${local_rank}", ranks=2, options=["--no-python", "--master_port", str(port)])
        run.finish()
        for rank in range(2):
            self.assertIn(f"shell {rank} of 2 at 127.0.0.1:{port}", run.stdout(), run)

    def test_a_port_that_is_taken(self):
        with socket.create_server(("0.0.0.0", 0)) as taken:
            port = taken.getsockname()[1]
            run = Run(self, "ddp.py", *ddp(3), ranks=2, options=["--master_port", str(port)])
            run.finish()
        self.assertIn(f"--master-port {port} can't be had", run.stderr(), run)

    def test_refused(self):
        refused = [(["--nnodes", "2"], "say where the nodes meet"), (["--node_rank=1"], "not below --nnodes 1"),
                   (["--master-addr", "192.0.2.1"], "not an address of this machine"), (["-r", "7"], "--redirects must be"),
                   (["--logs_specs", "mine"], "plug-ins"), (["-m", "--no_python"], "exclude each other")]
        for options, text in refused:
            with self.subTest(options):
                run = Run(self, "no_torch.py", ranks=2, options=options)
                run.finish(2, timeout=20)
                self.assertIn(text, run.stderr(), run)
                self.assertEqual(1, len(run.stderr().splitlines()), run)
        run = Run(self, "no-such-program", ranks=1, options=["--no-python"])
        run.finish(2, timeout=20)
        self.assertIn("not a program on PATH", run.stderr(), run)


class JobFile(TorchrunTest):
    def test_means_the_same_wherever_it_is_read(self):
        folder = self.output_folder()
        (folder / "jobs").mkdir()
        (folder / "train.py").write_text("import sys\nsys.stdout.write(f'trains {sys.argv[1:]}\\n')\n")
        (folder / "jobs/job.toml").write_text("name = 'j'\n[run]\nscript = '../train.py'\nargs = ['--fast']\nnproc_per_node = 2\n"
                                              "checkpoint_dir = 'saved'\ncheckpoint_keep = 3\n")
        for place, path in ((folder, "jobs/job.toml"), (folder / "jobs", "job.toml"), (folder, str(folder / "jobs/job.toml"))):
            with self.subTest(path):
                done = subprocess.run([BINARY, "run", "--run", self.folder() / "run", "--python", PYTHON, "--job-file", path],
                                      cwd=place, capture_output=True, text=True, timeout=60, env=inherited())
                self.assertEqual(0, done.returncode, done.stderr)
                self.assertEqual(2, done.stdout.count("trains ['--fast']"), done.stdout)
        self.assertTrue((folder / "jobs/saved").is_dir())
        self.assertFalse((folder / "saved").exists())

    def test_several_nodes(self):
        path = self.script("name = 'j'\n[run]\nnnodes = 2\nnproc_per_node = 3\ncoordinator = '127.0.0.1:29999'\n", "job.toml")
        for options, size in (([], "6"), (["--nnodes", "4"], "12")):
            done = subprocess.run([BINARY, "run", "--job-file", path, *options, "--dry-run", self.script("")], capture_output=True, text=True,
                                  timeout=20, env=inherited())
            self.assertEqual(0, done.returncode, done.stderr)
            self.assertEqual({size}, set(re.findall(r" WORLD_SIZE +(\d+)", done.stdout)), done.stdout)


class DryRun(TorchrunTest):
    def plan(self, *options, command=None):
        done = subprocess.run([BINARY, "run", "--python", PYTHON, *options, "--dry-run", command or self.script("")], capture_output=True, text=True,
                              timeout=20, env=inherited())
        self.assertEqual(0, done.returncode, done.stderr)
        self.notices = done.stderr
        return done.stdout

    def test_says_what_has_no_effect(self):
        self.plan("--nproc-per-node", "2", "--tee", "0:1,9:2")
        self.assertEqual("lockstep: --tee 0:1,9:2 has no effect on rank 9: this node has 2 ranks\n", self.notices)

    def test_refuses_what_would_be_refused(self):
        for job in "../x", "a/b", "..":
            done = subprocess.run([BINARY, "run", "--python", PYTHON, "--job", job, "--dry-run", self.script("")], capture_output=True, text=True,
                                  timeout=20, env=inherited(), check=False)
            self.assertEqual((2, f'lockstep: a job\'s name is the name of a directory: expected one without /, found "{job}"\n'),
                             (done.returncode, done.stderr))

    def test_says_what_a_program_has_preloaded(self):
        self.assertRegex(self.plan("--no-python", command="/bin/true"), r"LD_PRELOAD +/.*/liblockstep-gloo.so, if ")

    def test_says_what_would_be(self):
        for options, there, not_there in (
                ([], ["zygote", "rendezvous store", r"MASTER_ADDR +127.0.0.1", r"MASTER_PORT +a free one", r"USE_AGENT_STORE +True"], []),
                (["--start-method", "exec", "--master-port", "29599"], [r"MASTER_PORT +29599"], ["zygote", "LD_PRELOAD"]),
                ([], [r"LOCKSTEP_TRAILS +/.*/trails, if ", "LOCKSTEP_WORKER_PID +its pid", r" NCCL_ASYNC_ERROR_HANDLING +1, where torch is older"], ["LD_PRELOAD"]),
                (["--log-dir", "/tmp/logs", "--rdzv-id", "7"], [r"ERROR_FILE +/tmp/logs/7_XXXXXX/attempt_0/0/error.json"], []),
                (["--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "127.0.0.1:29599"],
                 [r"MASTER_ADDR +node 0's address", r"RUN_ID +none", r" RANK +1"], ["rendezvous store"])):
            with self.subTest(options):
                said = self.plan(*options)
                for words in there:
                    self.assertRegex(said, words)
                for words in not_there:
                    self.assertNotIn(words, said)


class Elastic(TorchrunTest):
    def test_a_script_that_keeps_its_own_snapshot(self):
        for strike in ("kill", "raise"):
            with self.subTest(strike):
                folder = self.output_folder()
                run = Run(self, self.script(ELASTIC), str(folder), strike, ranks=2, options=[
                    "--nnodes=1:1", "--max_restarts=3", "--rdzv_id=job7", "--rdzv_backend=c10d", f"--rdzv_endpoint=localhost:{free_port()}"])
                run.finish()
                epochs = re.findall(r"epoch (\d) restarts (\d)", run.stdout())
                self.assertEqual([(str(epoch), str(int(epoch > 2))) for epoch in range(6)], epochs, run)
                self.assertEqual([["1"]], run.suspects(), run)
                self.assertEqual(2, run.epoch(), run)

    def test_as_many_restarts_as_were_asked_for(self):
        for asked in (0, 2):
            with self.subTest(asked):
                folder = self.output_folder()
                script = self.script('import os, sys\nopen(sys.argv[1] + "/" + os.environ["TORCHELASTIC_RESTART_COUNT"], "w")\n'
                                     'sys.exit(3)\n')
                run = Run(self, script, str(folder), ranks=1, options=[f"--max_restarts={asked}"])
                run.finish(1)
                self.assertEqual([str(count) for count in range(asked + 1)], sorted(os.listdir(folder)), run)
                self.assertIn("exitcode  : 3", run.stderr(), run)

    def test_no_barrier_at_the_end(self):
        """One rank fails for good: those that would wait for it for ever are not waited for."""
        script = self.script('import os, sys, time\nif os.environ["RANK"] == "1": sys.exit(5)\ntime.sleep(1000)\n')
        run = Run(self, script, ranks=2, options=["--max_restarts=0"])
        run.finish(1, timeout=30)
        self.assertIn("first by rank 1", run.stderr(), run)


class Recorded(TorchrunTest):
    def assert_told(self, run):
        run.finish(1, timeout=60)
        self.assertIn("train.py", run.stderr(), run)
        for text in ("first by rank 1", "rank      : 1 (local_rank: 1)", "exitcode  : 1", "error.json",
                     "message   : ValueError: a bad batch (at train.py:6 in work)"):
            self.assertIn(text, run.stderr(), run)
        self.assertEqual([["1"]], run.suspects(), run)
        self.assertIn("ValueError at train.py:6 in work", run.incidents()[0]["headline"], run)

    def test_record(self):
        run = Run(self, self.script(RECORDED), ranks=2,
                  options=["--max_restarts=0", "--log_dir", str(self.output_folder())])
        self.assert_told(run)

    def test_of_a_python_below_a_shell(self):
        """Only torch's error file tells what happened there."""
        shell = self.script(f'#!/bin/sh\n{self.python} "$1"\nexit $?\n', "job.sh", 0o755)
        run = Run(self, shell, self.script(RECORDED), ranks=2,
                  options=["--no-python", "--max_restarts=0", "--log_dir", str(self.output_folder())])
        self.assert_told(run)

    def test_damaged(self):
        for text in ("half a {", "[]", '{"message": 3}'):
            with self.subTest(text):
                script = self.script("import os\n"
                                     f"open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write({text!r})\nos._exit(4)\n")
                run = Run(self, script, ranks=1, options=["--max_restarts=0"])
                run.finish(1, timeout=30)
                self.assertIn("error file is left aside", run.stderr(), run)
                self.assertIn("exitcode  : 4", run.stderr(), run)


class Logs(TorchrunTest):
    SPEAKS = """import os, sys
for stream, name in (sys.stdout, "out"), (sys.stderr, "err"):
    stream.write(f"{name} {os.environ['RANK']}\\n")
"""

    def speak(self, *options, **env):
        logs = self.output_folder()
        run = Run(self, self.script(self.SPEAKS), ranks=2, options=["--log_dir", str(logs), "--rdzv_id=job7", *options], env=env)
        run.finish()
        (own,) = logs.iterdir()
        self.assertRegex(own.name, "^job7_......$")
        files = {str(path.relative_to(own)): path.read_text() for path in own.rglob("*.log")}
        return run, files

    def test_redirects(self):
        run, files = self.speak("-r", "0:3,1:2")
        self.assertEqual({"attempt_0/0/stdout.log": "out 0\n", "attempt_0/0/stderr.log": "err 0\n",
                          "attempt_0/1/stderr.log": "err 1\n"}, files, run)
        self.assertEqual("out 1\n", run.stdout(), run)
        self.assertNotIn("err ", run.stderr(), run)

    def test_tee(self):
        run, files = self.speak("--tee", "3", "--role", "trainer", "--local-ranks-filter", "0")
        self.assertEqual({f"attempt_0/{rank}/std{stream}.log": f"{stream} {rank}\n"
                          for rank in range(2) for stream in ("out", "err")}, files, run)
        self.assertEqual("[trainer0]:out 0\n", run.stdout(), run)
        self.assertIn("[trainer0]:err 0\n", run.stderr(), run)
        self.assertNotIn("err 1", run.stderr(), run)

    def test_the_prefix_of_teed_lines(self):
        run, files = self.speak("--tee", "0:1", "--role", "trainer", TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="<${role_name} $rank>")
        self.assertEqual("out 0\n", files["attempt_0/0/stdout.log"], run)
        self.assertIn("<trainer 0>out 0\n", run.stdout(), run)

    def test_neither(self):
        run, files = self.speak()
        self.assertEqual({}, files, run)
        self.assertEqual(["out 0", "out 1"], sorted(run.stdout().split("\n")[:2]), run)

    def test_attempts_are_kept_apart(self):
        logs = self.output_folder()
        script = self.script('import os, sys\ncount = os.environ["TORCHELASTIC_RESTART_COUNT"]\nprint("attempt", count)\n'
                             'sys.exit(count == "0")\n')
        run = Run(self, script, ranks=1, options=["--log_dir", str(logs), "-r", "1", "--max_restarts=1"])
        run.finish()
        for count in range(2):
            (path,) = logs.glob(f"*/attempt_{count}/0/stdout.log")
            self.assertEqual(f"attempt {count}\n", path.read_text(), run)

    def test_what_the_disk_does_not_take_is_counted(self):
        """The first attempt makes the log of the second one a full disk."""
        go = self.output_folder()
        script = self.script('''
import os, sys, time
here = os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"])
if "attempt_0" in here:
    there = here.replace("attempt_0", "attempt_1")
    os.makedirs(there)
    os.symlink("/dev/full", there + "/stdout.log")
    sys.exit(1)
print("x" * 999)
while not os.path.exists(sys.argv[1] + "/go"):
    time.sleep(0.1)
''')
        run = Run(self, script, str(go), ranks=1,
                  options=["--log_dir", str(self.output_folder()), "-r", "1", "--max_restarts=1"])
        run.wait("the count", lambda: run.status().get("output", {}).get("log_dropped_bytes") == 1000)
        (go / "go").touch()
        run.finish()
        self.assertIn("dropped and counted", run.stderr(), run)

    def test_folder_that_can_t_be_made(self):
        run = Run(self, "no_torch.py", ranks=1, options=["--log_dir", "/dev/null/logs"])
        run.finish(2, timeout=20)
        self.assertIn("--log-dir /dev/null/logs", run.stderr(), run)


class Signals(TorchrunTest):
    def start(self, **options):
        folder = self.output_folder()
        run = Run(self, self.script(HEARS_SIGNALS), str(folder), ranks=2, **options)
        run.wait("both workers", lambda: len(list(folder.glob("ready.*"))) == 2)
        return run, folder

    def test_are_passed_on(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(number.name):
                run, folder = self.start()
                run.watcher.send_signal(number)
                run.finish(1, timeout=20)
                self.assertEqual([str(int(number))] * 2, [path.read_text() for path in folder.glob("heard.*")], run)
                self.assertIn(f"stopped by {number.name}", run.stderr(), run)

    def assert_saves(self, *command, options=()):
        folder = self.output_folder()
        run = Run(self, *command, str(folder), ranks=2, options=options)
        run.wait("both workers", lambda: len(list(folder.glob("ready.*"))) == 2)
        run.watcher.send_signal(signal.SIGTERM)
        run.finish(1, timeout=20)
        self.assertEqual(2, len(list(folder.glob("saved.*"))), run)
        self.assertNotIn("Traceback", run.stderr(), run)

    def test_do_not_end_the_processes_that_load_data(self):
        self.assert_saves(self.script(SAVES_WHEN_ASKED_TO_END))

    def test_reach_what_a_shell_runs(self):
        """The shell itself ends at once, and what it has started has the grace none the less."""
        shell = self.script(f'#!/bin/sh\n{self.python} "$1" "$2"\nexit $?\n', "job.sh", 0o755)
        script = SAVES_WHEN_ASKED_TO_END.replace("num_workers=2", "num_workers=0")
        self.assert_saves(shell, self.script(script), options=["--no-python"])

    def test_that_are_not_to_be_handled(self):
        run, folder = self.start(options=["--signals-to-handle", "SIGTERM,SIGUSR1"])
        run.watcher.send_signal(signal.SIGHUP)
        run.watcher.send_signal(signal.SIGUSR1)
        run.finish(1, timeout=40)
        self.assertIn("stopped by SIGUSR1", run.stderr(), run)
        self.assertEqual([], list(folder.glob("heard.*")), run)


if __name__ == "__main__":
    unittest.main()
