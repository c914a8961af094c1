"""A worker can't tell how it was started: by exec and from the zygote it sees what torchrun would have given it."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import unittest
import zipapp

from harness import BINARY, PYTHON, QUICK_LIMITS, ROOT, Run, RunTest, alive, children, ddp, kill

PROBE = '''
import json, os, random, sys, threading
import numpy, torch

rank = os.environ["RANK"]
with open(f"{sys.argv[1]}/seen.{rank}", "w") as file:
    json.dump({
        "environment": dict(os.environ),
        "argv": sys.argv,
        "cwd": os.getcwd(),
        "name": __name__,
        "file": __file__,
        "package": __package__,
        "path": sys.path[0],
        "paths": sys.path,
        "main": sys.modules["__main__"].__dict__ is globals(),
        "unbuffered": sys.stdout.write_through,
        "stdin": os.readlink("/proc/self/fd/0"),
        "leader": os.getpid() == os.getsid(0),
        "worker": os.environ["LOCKSTEP_WORKER_PID"] == str(os.getpid()),
        "threads": [torch.get_num_threads(), threading.active_count()],
        "chance": [random.random(), numpy.random.rand(), torch.initial_seed()],
    }, file)
print(f"out of rank {rank}")
print(f"err of rank {rank}", file=sys.stderr)
'''
# OMP_NUM_THREADS and the like are read when torch is imported; what is set below the import comes too late, whichever way a worker started.
SETS_THREADS = '''
import json, os, sys
{above}
import torch
{below}

with open("/proc/self/maps") as maps:
    collected = "liblockstep-gloo" in maps.read()
with open(f"{{sys.argv[1]}}/seen.{{os.environ['RANK']}}", "w") as file:
    json.dump({{"threads": torch.get_num_threads(), "forked": "lockstep._packets" in sys.modules, "collected": collected,
               "variable": os.environ.get("OMP_NUM_THREADS"), "preload": os.environ.get("LD_PRELOAD")}}, file)
'''
# By its name, as NCCL 2.27.3 does. Says what it was told, which file that is, what else the loader searches, whose run it is.
LOADS_AS_NCCL = '''#!/usr/bin/env python3
import ctypes, os

name = os.environ["NCCL_PROFILER_PLUGIN"]
ctypes.CDLL(name).ncclProfiler_v6
with open("/proc/self/maps") as maps:
    loaded = {line.split()[-1] for line in maps if name in line}
print(name, *loaded, os.environ["LD_LIBRARY_PATH"].split(":", 1)[1], os.path.dirname(os.environ["LOCKSTEP_TRAILS"]))
'''
# Joins as the rank that it is; then what it starts with its environment tries to, by exec, and by fork.
STARTS_OTHERS = '''
import os, subprocess, sys
from lockstep import _client

tries = "from lockstep import _client; print('also the rank' if _client.join() else 'on its own')"
print("the rank" if _client.join() else "on its own", flush=True)
subprocess.run([sys.executable, "-c", tries], check=True)
child = os.fork()
if child == 0:
    print("also the rank" if _client.join() else "on its own", flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("still the rank" if _client.join() else "on its own", flush=True)
'''
# A class of __main__ is pickled when the last line has run.
SAVES_AT_THE_END = '''
import atexit, pickle, sys, threading, time

class Net:
    pass

def save(who):
    name = pickle.loads(pickle.dumps(Net())).__class__.__module__
    sys.stdout.write(f"{who} {name} {sys.argv[1:]}\\n")

def save_soon():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    save("thread")

atexit.register(save, "atexit")
threading.Thread(target=save_soon).start()
'''
# A child of the rank fails, and then the rank in its own way.
CHILD_FAILS = '''
import os
if os.fork() == 0:
    raise ValueError("of the child")
os.wait()
os._exit(3)
'''
# What torchrun 1.13 gives each worker.
CONTRACT = {"LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE",
            "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
            "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
            "TORCHELASTIC_ERROR_FILE", "NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS"}
SAME_FOR_ALL = {"GROUP_RANK": "0", "ROLE_NAME": "default", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2",
                "GROUP_WORLD_SIZE": "1", "ROLE_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                "TORCHELASTIC_RESTART_COUNT": "0", "NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1",
                "LOCKSTEP_EPOCH": "1"}
OF_THE_RUN = {"LOCKSTEP_RUN", "LOCKSTEP_JOB", "LOCKSTEP_E2E_RUN", "HOME", "TORCHELASTIC_RUN_ID", "LOCKSTEP_STACKS_FILE",
              "TORCHELASTIC_ERROR_FILE", "LOCKSTEP_ERROR_FILE", "MASTER_PORT", "LOCKSTEP_WORKER_PID"}
METHODS = ("exec", "zygote")
# Statement, exit status of `lockstep run`, what it says.
EXITS = [("sys.exit(0)", 0, ""), ("raise SystemExit", 0, ""), ("sys.exit(7)", 1, "exit code 7"),
         ("os._exit(9)", 1, "exit code 9"), ("sys.exit('words')", 1, "exit code 1")]


def zipped(folder):
    path = f"{folder}.pyz"
    zipapp.create_archive(folder, path)
    return path


class StartMethods(RunTest):
    maxDiff = None

    def probe(self, method, module=False, **options):
        """What both ranks saw."""
        folder = self.folder()
        (folder / "package").mkdir()
        script = folder / "package/probe.py"
        script.write_text(PROBE)
        words = ["-m", "--start-method", method] if module else ["--start-method", method]
        run = Run(self, "package.probe" if module else str(script), str(folder), "a b", "${local_rank}", ranks=2,
                  options=words, env={"PYTHONPATH": str(folder), **options})
        folder.chmod(0o777)
        run.finish()
        seen = [json.loads((folder / f"seen.{rank}").read_text()) for rank in range(2)]
        return run, folder, seen

    def test_contract(self):
        for method in METHODS:
            with self.subTest(method):
                run, folder, seen = self.probe(method)
                for rank, one in enumerate(seen):
                    self.assert_contract(rank, one["environment"], run)
                    self.assert_like_python(one, rank, folder, run)
                for first, second in zip(seen[0]["chance"], seen[1]["chance"]):
                    self.assertNotEqual(first, second, run)
                self.assert_output(run)

    def assert_contract(self, rank, environment, run):
        self.assertLessEqual(CONTRACT, environment.keys(), run)
        expected = {**SAME_FOR_ALL, **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK", "LOCKSTEP_RANK"), str(rank)),
                    "LOCKSTEP_RUN": str(run.dir)}
        self.assertEqual(expected, {name: environment.get(name) for name in expected}, run)
        self.assertIn(environment["TORCHELASTIC_USE_AGENT_STORE"], ("True", "False"), run)

    def assert_like_python(self, one, rank, folder, run):
        script = str(folder / "package/probe.py")
        self.assertEqual([script, str(folder), "a b", str(rank)], one["argv"], run)
        self.assertEqual(str(run.folder), one["cwd"], run)
        self.assertEqual(("__main__", script), (one["name"], one["file"]), run)
        self.assertEqual(os.path.dirname(script), one["path"], run)
        self.assertNotIn("/", one["paths"], run)
        for name in ("main", "unbuffered", "leader", "worker"):
            self.assertTrue(one[name], f"{name}\n{run}")
        self.assertEqual("/dev/null", one["stdin"], run)

    def assert_output(self, run):
        for rank in range(2):
            self.assertIn(f"out of rank {rank}", run.stdout(), run)
            self.assertIn(f"err of rank {rank}", run.stderr(), run)

    def test_both_methods_show_the_same(self):
        """But for what differs from run to run, from process to process or by chance."""
        seen = {method: self.probe(method, OMP_NUM_THREADS="2") for method in METHODS}
        comparable = [[comparable_part(one, folder, run) for one in ranks] for run, folder, ranks in seen.values()]
        self.assertEqual(*comparable)
        self.assertEqual([2, 1], comparable[0][0]["threads"])

    def test_who_has_joined_is_the_rank_and_not_its_children(self):
        for method in METHODS:
            with self.subTest(method):
                script = self.folder() / "starts.py"
                script.parent.chmod(0o755)
                script.write_text(STARTS_OTHERS)
                run = Run(self, str(script), ranks=1, options=["--start-method", method])
                run.finish()
                said = [line.split("] ")[-1].strip() for line in run.stdout().splitlines() if "rank" in line or "own" in line]
                self.assertEqual(["the rank", "on its own", "on its own", "still the rank"], said, run)
                self.assertRegex(run.stderr(), r"goes on without Lockstep: rank 0 of this epoch is process \d+ already", run)

    def test_module(self):
        for method in METHODS:
            with self.subTest(method):
                run, folder, seen = self.probe(method, module=True)
                for rank, one in enumerate(seen):
                    script = str(folder / "package/probe.py")
                    self.assertEqual([script, str(folder), "a b", str(rank)], one["argv"], run)
                    self.assertEqual(("__main__", script, "package"), (one["name"], one["file"], one["package"]), run)
                    self.assertEqual(str(run.folder), one["path"], run)

    def test_relative_script(self):
        """As with `python train.py`: argv holds what the user wrote, __file__ the whole path."""
        for method in METHODS:
            with self.subTest(method):
                folder = self.folder()
                script = folder / "probe.py"
                script.write_text(PROBE)
                options = ["--start-method", method]
                run = Run(self, os.path.relpath(script, "/tmp/anywhere"), str(folder), ranks=1, options=options)
                run.finish()
                one = json.loads((folder / "seen.0").read_text())
                self.assertEqual(run.command[-2], one["argv"][0], run)
                self.assertTrue(os.path.isabs(one["file"]), f"{one['file']}\n{run}")
                self.assertEqual(str(folder), one["path"], run)

    def sets(self, method, above, below=""):
        """(the run, what both ranks saw) of a script with these lines above and below its import of torch."""
        folder = self.folder()
        folder.chmod(0o777)
        script = folder / "sets.py"
        script.write_text(SETS_THREADS.format(above=above, below=below))
        run = Run(self, str(script), str(folder), ranks=2, options=["--start-method", method])
        run.finish()
        return run, [json.loads((folder / f"seen.{rank}").read_text()) for rank in range(2)]

    def test_what_the_script_sets_before_it_imports_torch_counts(self):
        """And for a number of threads, what stands above runs once."""
        once, setting = "os.mkdir(f\"{sys.argv[1]}/made.{os.environ['RANK']}\")", 'os.environ["OMP_NUM_THREADS"] = "3"'
        for method in METHODS:
            for above, below, threads in ((f"{once}\n{setting}", "", 3), ("", setting, 1)):
                with self.subTest(f"{method}: {threads} threads"):
                    run, seen = self.sets(method, above, below)
                    expected = {"threads": threads, "forked": method == "zygote", "collected": True, "variable": "3", "preload": None}
                    self.assertEqual([expected] * 2, seen, run)
                    self.assertNotIn("begin anew", run.stderr(), run)

    def test_for_what_is_no_number_of_threads_it_begins_anew(self):
        run, seen = self.sets("zygote", 'os.environ["OMP_SCHEDULE"] = "static"')
        self.assertEqual([{"threads": 1, "forked": False, "collected": True, "variable": "1", "preload": None}] * 2, seen, run)
        self.assertEqual(1, run.stderr().count("the script sets OMP_SCHEDULE, which torch reads at its import"), run)

    def test_it_begins_anew_in_the_folder_in_which_it_began(self):
        for module in ([], ["-m"]):
            with self.subTest(module):
                folder = self.folder()
                folder.chmod(0o755)
                (folder / "work").mkdir()
                above = f'os.chdir({str(folder / "work")!r})\nos.environ["OMP_SCHEDULE"] = "static"'
                (folder / "moves.py").write_text(f"import os, sys\nsys.stdout.write(os.getcwd() + ' ')\n{above}\nimport torch\nsys.stdout.write(os.getcwd())\n")
                script = "moves" if module else os.path.relpath(folder / "moves.py", "/tmp/anywhere")
                run = Run(self, script, ranks=1, options=[*module, "--start-method", "zygote"], env={"PYTHONPATH": str(folder)})
                run.finish()
                began_in, again_in, trains_in = run.stdout().split()
                self.assertEqual((began_in, str(folder / "work")), (again_in, trains_in), run)

    def test_what_the_script_removes_before_it_imports_torch_counts(self):
        seen = {method: self.sets(method, 'os.environ.pop("OMP_NUM_THREADS")')[1] for method in METHODS}
        self.assertEqual(seen["exec"], seen["zygote"])  # which began anew
        run, (one, _) = self.sets("zygote", 'os.environ["MKL_NUM_THREADS"] = "2"\nos.environ.pop("OMP_NUM_THREADS")')
        self.assertEqual((2, True, None), (one["threads"], one["forked"], one["variable"]), run)

    def test_an_environment_that_is_cleared_and_filled_again_is_whole(self):
        run, (one, _) = self.sets("zygote", "from unittest import mock\nwith mock.patch.dict(os.environ, A='1'):\n    pass\nassert os.environ['HOME'] and 'A' not in os.environ")
        self.assertEqual((1, "1"), (one["threads"], one["variable"]), run)

    def test_a_module_beside_the_script_is_found_before_one_that_torch_has_imported(self):
        for method in METHODS:
            with self.subTest(method):
                script = self.folder() / "train.py"
                (script.parent / "time.py").write_text("")  # built in: nobody would find this
                script.write_text("import sys, typing_extensions\nsys.stdout.write(typing_extensions.__file__)\n")
                beside = script.parent / "typing_extensions.py"
                shutil.copy(next(pathlib.Path("/usr/lib/python3").rglob("typing_extensions.py")), beside)
                for path in (script.parent, beside, script):
                    path.chmod(0o755)
                run = Run(self, str(script), ranks=1, options=["--start-method", method])
                run.finish()
                self.assertEqual(str(beside), run.stdout(), run)
                self.assertEqual(method == "zygote", "the script has a module typing_extensions of its own" in run.stderr(), run)

    def test_relative_entries_of_pythons_path(self):
        folder = self.folder()
        (folder / "src").mkdir()
        (folder / "src/ours.py").write_text("VALUE = 7")
        entry = os.path.relpath(folder / "src", "/tmp/anywhere")
        (folder / "script.py").write_text("import os, sys, ours\nprint(ours.VALUE, os.getcwd() in sys.path, '/' in sys.path)")
        for method in METHODS:
            with self.subTest(method):  # an empty one is the working directory
                run = Run(self, str(folder / "script.py"), ranks=1, options=["--start-method", method], env={"PYTHONPATH": f"{entry}:"})
                run.finish()
                self.assertEqual("7 True False\n", run.stdout(), run)

    def test_main_stays_until_the_process_ends(self):
        for method in METHODS:
            for module in ([], ["-m"]):
                with self.subTest(f"{method} {module}"):
                    script = self.folder() / "saves.py"
                    script.parent.chmod(0o755)
                    script.write_text(SAVES_AT_THE_END)
                    run = Run(self, "saves" if module else str(script), "a", ranks=1, options=[*module, "--start-method", method],
                              env={"PYTHONPATH": str(script.parent)})
                    run.finish()
                    self.assertEqual({"thread __main__ ['a']", "atexit __main__ ['a']"}, set(run.stdout().splitlines()), run)

    def app(self, main):
        """A folder that is a script, with a module beside its `main`."""
        folder = self.folder() / "app"
        folder.mkdir()
        folder.parent.chmod(0o755)
        (folder / "part.py").write_text("NAME = 'part'\n")
        (folder / "__main__.py").write_text(main)
        return folder

    def test_an_archive_and_a_folder_are_scripts(self):
        for method in METHODS:
            for pack in (str, zipped):
                with self.subTest(f"{method} {pack.__name__}"):
                    path = pack(self.app("import sys, part\nsys.stdout.write(f'{__name__} {part.NAME} {sys.argv} {sys.path[0]}')\n"))
                    run = Run(self, path, "a", ranks=1, options=["--start-method", method])
                    run.finish()
                    self.assertEqual(f"__main__ part {[path, 'a']} {path}", run.stdout(), run)

    def test_an_archive_that_changes_its_folder_finds_its_parts(self):
        for method in METHODS:
            with self.subTest(method):
                path = zipped(self.app("import os, sys\nos.chdir('/')\nimport part\nsys.stdout.write(f'{part.NAME} {sys.argv[0]} {sys.path[0]}')\n"))
                run = Run(self, os.path.relpath(path, "/tmp/anywhere"), ranks=1, options=["--start-method", method])
                run.finish()
                self.assertEqual(f"part {run.command[-1]} {run.folder}/{run.command[-1]}", run.stdout(), run)

    def test_the_exception_of_a_child_is_not_its_rank_s(self):
        for method in METHODS:
            with self.subTest(method):
                script = self.folder() / "forks.py"
                script.parent.chmod(0o755)
                script.write_text(CHILD_FAILS)
                run = Run(self, str(script), ranks=1, options=["--start-method", method, "--max-restarts", "0"])
                run.finish(1)
                said = [line for line in run.stderr().splitlines() if line.startswith("lockstep: ")]
                self.assertIn("exit code 3", said[-1], run)
                self.assertNotIn("ValueError", said[-1], run)

    def test_what_is_set_while_torch_trains_begins_nothing_anew(self):
        """By the script's libraries, or by torch itself (torch.compile sets TORCHINDUCTOR_CACHE_DIR)."""
        library = "import json, os\nOTHER = {}\ndef main(folder):\n    import torch\n    import torch.distributed as dist\n    dist.init_process_group('gloo')\n"
        library += "    os.environ['TORCH_SOMETHING'] = 'new'\n    dist.all_reduce(torch.ones(1))\n"
        library += "    open(f\"{folder}/pid.{os.environ['RANK']}\", 'w').write(str(os.getpid()))\n    dist.destroy_process_group()\n    del torch, dist\n    set_late()\n"
        library += "def set_late():\n    os.environ['OMP_SOMETHING'] = 'new'\n"
        folder = self.folder()
        folder.chmod(0o777)
        (folder / "library.py").write_text(library)
        script = folder / "entry.py"
        script.write_text("import sys\nfrom library import main\nmain(sys.argv[1])\n")
        run = Run(self, str(script), str(folder), ranks=2, options=["--start-method", "zygote"])
        run.finish()
        self.assertNotIn("begin anew", run.stderr(), run)
        self.assertEqual(2, len(list(folder.glob("pid.*"))), run)

    def test_more_arguments_than_the_zygote_is_told(self):
        script = self.folder() / "long.py"
        script.write_text("import sys\nsys.stdout.write(f'{len(sys.argv[1])}\\n')\n")
        run = Run(self, str(script), "x" * 100_000, ranks=3)
        run.finish()
        self.assertEqual(["100000"] * 3, run.stdout().split(), run)
        self.assertIn("workers start by exec: their variables and arguments take", run.stderr(), run)

    def test_a_path_that_is_no_text(self):
        run = Run(self, "ddp.py", os.fsdecode(b"caf\xe9"), ranks=1)
        self.assertEqual(2, run.watcher.wait(30), run)
        self.assertIn("is no UTF-8", run.stderr(), run)

    def test_our_sitecustomize_where_there_is_no_other(self):
        done = subprocess.run([PYTHON, "-S", "-c", "import importlib.util, sys\nimportlib.util.find_spec = lambda name: None\nimport sitecustomize\nprint(42)"],
                              env={"PYTHONPATH": str(ROOT / "python/lockstep/_site")}, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((0, "42\n", ""), (done.returncode, done.stdout, done.stderr))

    def test_nccl_is_told_to_load_our_profiler_where_it_has_no_other(self):
        ours = pathlib.Path(BINARY).resolve().parents[1] / "lib/liblockstep-nccl-profiler.so"
        script = self.folder() / "told.py"
        script.write_text(LOADS_AS_NCCL)
        script.chmod(0o755)
        begun = (*(["--start-method", method] for method in METHODS), ["--no-python"])
        for told, options in (*(("", options) for options in begun), (ours.name, begun[0]), (str(ours), begun[0])):
            with self.subTest(f"{told} {options}"):
                env = {"NCCL_PROFILER_PLUGIN": told, "LD_LIBRARY_PATH": "/theirs"}
                run = Run(self, str(script), ranks=1, options=["--nccl-profiler", *options], env=env)
                run.finish()
                self.assertEqual([ours.name, str(ours), "/theirs", str(run.dir)], run.stdout().split(), run)

    def test_another_profiler_of_nccl_stays(self):
        script = self.folder() / "told.py"
        script.write_text("import os\nprint(os.environ['NCCL_PROFILER_PLUGIN'], os.environ.get('LD_LIBRARY_PATH'))\n")
        run = Run(self, str(script), ranks=1, options=["--nccl-profiler"], env={"NCCL_PROFILER_PLUGIN": "/opt/theirs.so"})
        run.finish()
        self.assertEqual(["/opt/theirs.so", str(os.environ.get("LD_LIBRARY_PATH"))], run.stdout().split(), run)
        self.assertIn("NCCL_PROFILER_PLUGIN is /opt/theirs.so already", run.stderr(), run)

    def test_faults_are_explained(self):
        """By exec as by the zygote (all other tests): the stack of a rank that hangs, the exception that ends one."""
        run = Run(self, "ddp.py", *ddp(faults=["native:1:5:forward:1", "raise:2:10:forward:2"]),
                  options=["--start-method", "exec", *QUICK_LIMITS])
        run.finish()
        self.assert_repaired(run, [1, 2], {"not_entered", "exit"})
        self.assertIn("in block_in_c", run.stacks(1), run)
        self.assertIn("ValueError at faults.py", run.faults()[1]["headline"], run)
        run.assert_undisturbed_result()

    def test_exit_status(self):
        for method in METHODS:
            for statement, code, text in EXITS:
                with self.subTest(f"{method}: {statement}"):
                    script = self.folder() / "leave.py"
                    script.write_text(f"import os, sys\n{statement}\n")
                    run = Run(self, str(script), ranks=1, options=["--start-method", method, "--max-restarts", "0"])
                    run.finish(code)
                    self.assertIn(text, run.stderr(), run)

    def test_files_left_open_are_written(self):
        for method in METHODS:
            with self.subTest(method):
                folder = self.folder()
                folder.chmod(0o777)
                script = folder / "leave.py"
                script.write_text("import sys\nlog = open(sys.argv[1], 'w')\nlog.write('the last line')\nraise ValueError\n")
                run = Run(self, str(script), str(folder / "log"), ranks=1, options=["--start-method", method, "--max-restarts", "0"])
                run.finish(1)
                self.assertEqual("the last line", (folder / "log").read_text(), run)


class ForkedAhead(RunTest):
    """The zygote has the workers of the next epoch ready: children of a nest, which is its own child."""

    def nest(self, run):
        """(pid of the nest, pids of the workers in it), or None while there is none: one that has just handed its workers out may not be gone."""
        for zygote in children(run.starter()):
            for nest in children(zygote):
                workers = children(nest)
                if len(workers) == 4 and not set(workers) & set(run.pids()):
                    return nest, workers
        return None

    def test_they_become_the_workers_and_nothing_hangs_on_them(self):
        steps = 120
        run = Run(self, "ddp.py", *ddp(steps=steps))
        _, ahead = run.wait("workers forked ahead", lambda: self.nest(run))
        kill(run.pids()[1], signal.SIGKILL)
        run.wait("epoch 2", lambda: run.epoch() == 2 and len(run.pids()) == 4)
        self.assertEqual(ahead, sorted(run.pids()), run)

        nest, ahead = run.wait("workers forked ahead again", lambda: self.nest(run))
        kill(nest, signal.SIGKILL)
        run.wait("the end of those in the nest", lambda: not any(map(alive, ahead)))
        kill(run.pids()[2], signal.SIGKILL)
        run.wait("epoch 3", lambda: run.epoch() == 3 and len(run.pids()) == 4)
        run.finish()
        self.assert_repaired(run, [1, 2], {"crash"})
        run.assert_undisturbed_result(steps)


class StoppedHelpers(RunTest):
    """The zygote, its nest and the store host, when they have stopped: they answer nothing, and end only when they are killed."""

    def test_the_job_restarts_without_the_zygote(self):
        steps = 150
        run = Run(self, "ddp.py", *ddp(steps=steps))
        zygote, _ = self.zygote_and_others(run)
        kill(zygote, signal.SIGSTOP)
        kill(run.pids()[1], signal.SIGKILL)
        run.finish()
        self.assertIn("workers start by exec from now on: the zygote process did not answer within 15 s and was killed", run.stderr(), run)
        run.assert_undisturbed_result(steps)

    def test_the_job_starts_without_the_zygote(self):
        """Its first workers: the zygote has forked one and says nothing of it."""
        folder = self.folder()
        hangs = folder / "zygote.py"
        hangs.write_text("import sys, time\nfrom lockstep import _zygote\n"
                         "def hang(*_):\n    _zygote._fork_orphan()\n    time.sleep(1000)\n"
                         "_zygote._spawn = hang\nsys.exit(_zygote.main())\n")
        python = folder / "python"
        python.write_text(f'#!/bin/sh\ncase "$*" in "-u -m lockstep._zygote") set -- -u {hangs};; esac\nexec {PYTHON} "$@"\n')
        python.chmod(0o755)
        script = folder / "lists.py"
        script.write_text("import os, pathlib\n"
                          "for pid in pathlib.Path(f'/proc/{os.getppid()}/task/{os.getppid()}/children').read_text().split():\n"
                          "    print(pathlib.Path(f'/proc/{pid}/cmdline').read_bytes().split(b'\\0')[2].decode())\n")
        run = Run(self, str(script), ranks=1, python=str(python), options=["--max-restarts", "0"])
        run.finish()
        self.assertIn("workers start by exec from now on: the zygote process did not answer within 15 s and was killed", run.stderr(), run)
        self.assertEqual([[], 1], [run.faults(), run.epoch()], run)
        # The worker, and the store host, which the zygote had forked before.
        self.assertEqual(sorted([str(hangs), str(script)]), sorted(run.stdout().split()), run)

    def test_none_outlives_the_run(self):
        run = Run(self, "ddp.py", *ddp(), ranks=2)
        zygote, others = self.zygote_and_others(run)
        for pid in (*children(zygote), zygote, *others):
            kill(pid, signal.SIGSTOP)
        run.finish()

    def zygote_and_others(self, run):
        """Of the starter's children that are no workers, the one that has forked some ahead; the rest."""
        run.wait_for_step(3)

        def found():
            helpers = set(children(run.starter())) - set(run.pids())
            return [(helper, helpers - {helper}) for helper in helpers if children(helper)]

        return run.wait("workers forked ahead", found)[0]


def comparable_part(one, folder, run):
    """One rank's view with the folders of its run named alike, and without what chance decides."""
    text = json.dumps({name: value for name, value in one.items() if name not in ("chance", "paths")})
    whole = json.loads(text.replace(str(folder), "FOLDER").replace(str(run.folder), "RUN"))
    whole["environment"] = {name: value for name, value in whole["environment"].items() if name not in OF_THE_RUN}
    return whole


if __name__ == "__main__":
    unittest.main()
