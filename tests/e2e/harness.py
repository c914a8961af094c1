"""Starts real jobs the way a user does, watches them from outside, and leaves nothing behind.

    run = Run(self, "ddp.py", "--steps", "20", "--fault", "kill:2:7")
    run.finish()                                          # exit status 0, and no process or shared memory is left
    self.assertEqual([["2"]], run.suspects(), run)        # a failure shows what the run said and what it recorded

LOCKSTEP_BINARY names the binary under test, LOCKSTEP_E2E_CACHE a folder for undisturbed results, LOCKSTEP_E2E_KEEP=1
keeps the folders of the runs.
"""
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
import shared_memory
from free_port import free_port  # for those that import this

JOBS = ROOT / "tests/e2e/jobs"
BINARY = os.environ.get("LOCKSTEP_BINARY") or str(ROOT / "build/release/bin/lockstep")
CACHE = pathlib.Path(os.environ.get("LOCKSTEP_E2E_CACHE") or ROOT / "build/e2e-cache")
PYTHON = "/usr/bin/python3"  # Debian's: it has torch, and a python3 earlier on PATH may not
OF_THE_TEST = object()
NOBODY = 65534

STEPS = 30  # of a job, unless a test needs more: one undisturbed result serves them all
STEP_TIME_S = 0.05
QUICK_LIMITS = ("--blocked-limit-s", "3", "--spin-limit-s", "3")

# In the environment of every process that belongs to a run, whoever its parent is by now.
MARK = "LOCKSTEP_E2E_RUN"
POLL_S = 0.1
INCIDENT_FIELDS = {"id", "headline", "symptom", "suspects", "ambiguous_with", "certain", "evidence", "joined", "opened",
                   "closed", "phases", "actions", "steps_lost"}
SLOWNESS = {"communication_slow", "non_communication_slow", "job_slow", "data_slow", "plan_drift"}  # which names, and compels nothing
PHASES = {"detect_s", "decide_s", "restart_s", "recompute_s"}


def of_the_job(incidents):
    """Those of the job itself, without what was merely named: a loaded machine is slow for seconds, too, and an agent silent."""
    return [one for one in incidents if one["certain"] and one["symptom"] not in SLOWNESS | {"watcher_lost"}]


def ddp(steps=STEPS, faults=(), step_time=STEP_TIME_S):
    """The arguments of jobs/ddp.py."""
    planned = (word for fault in faults for word in ("--fault", fault))
    return ["--steps", str(steps), "--step-time", str(step_time), *planned]


class Run:
    """One run of Lockstep in a folder of its own. `str(run)` is what a person needs to see when a test fails."""

    def __init__(self, test, script, *args, ranks=4, options=(), uid=None, env=None, python=OF_THE_TEST, terminal=None, binary=BINARY,
                 prefix=()):
        self.test, self.ranks, self.terminal, self.binary = test, ranks, terminal, binary
        self.uid = test.uid if uid is None else uid
        self.python = test.python if python is OF_THE_TEST else python
        self.prefix = prefix  # a command that runs `lockstep run` elsewhere, such as in a network namespace
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-e2e-", dir="/tmp"))  # short: it holds sockets
        if self.uid is not None:
            os.chown(self.folder, self.uid, self.uid)
        self.dir, self.out = self.folder / "run", self.folder / "out.json"
        self.log, self.leftovers = self.folder / "steps.jsonl", self.folder / "leftovers.json"
        self.env = {**inherited(), "HOME": str(self.folder), MARK: str(self.folder), **(env or {})}
        self.started, self.watcher = [], None
        self.shared_memory = shared_memory.names()
        test.addCleanup(self._clear_away)
        files = {}
        if pathlib.Path(script).stem == "ddp_replayed" or script == "ddp.py":
            files = {"--out": self.out, "--log": self.log, "--leftovers": self.leftovers}
        elif script == "zero.py":
            files = {"--log": self.log}
        args = [*(str(word) for pair in files.items() for word in pair), *args]
        path = JOBS / script if (JOBS / script).exists() else script
        view = [] if terminal is not None else ["--no-view"]
        self.common = ["--python", self.python] if self.python else []
        self.command = [*view, "--nproc-per-node", str(ranks), *self.common, *options, str(path), *args]
        self.start("--run", str(self.dir), *self.command)

    def start(self, *words):
        """Starts `lockstep run` with these words; from now on it is the watcher."""
        self.watcher = self._spawn([*self.prefix, self.binary, "run", *words])
        return self.watcher

    def resume(self, *words):
        return self.start("--resume", str(self.dir), "--no-view", *words)

    def _spawn(self, command):
        number = len(self.started)
        with open(self.folder / f"stdout.{number}", "wb") as out, open(self.folder / f"stderr.{number}", "wb") as err:
            files = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            if self.terminal is not None:
                files = dict.fromkeys(files, self.terminal)
                files["preexec_fn"] = take_terminal
            process = subprocess.Popen(command, cwd=self.folder, env=self.env, start_new_session=True,
                                       **identity(self.uid), **files)
        self.started.append(process)
        return process

    # ---- what it says ----

    def stderr(self, number=-1):
        number = number % len(self.started)
        return (self.folder / f"stderr.{number}").read_text(errors="replace")

    def stdout(self):
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("stdout.*")))

    def ask(self, subcommand, *words):
        return subprocess.run([self.binary, subcommand, "--run", str(self.dir), *words], capture_output=True, text=True,
                              timeout=30, env=self.env, **identity(self.uid))

    def _json(self, subcommand, otherwise):
        answer = self.ask(subcommand, "--json")
        return json.loads(answer.stdout) if answer.returncode == 0 else otherwise

    def status(self):
        """{} before there is a run to speak of."""
        return self._json("status", {})

    def incidents(self):
        return self._json("incidents", [])

    def faults(self):
        return of_the_job(self.incidents())

    def suspects(self):
        """The ranks that each of faults() names."""
        return [[suspect["name"] for suspect in incident["suspects"]] for incident in self.faults()]

    def epoch(self):
        return self.status().get("epoch") or 0

    def step(self):
        step = self.status().get("step")
        return -1 if step is None else step

    def steps(self):
        """What rank 0 wrote down: {"step", "loss", "at", "epoch"} each."""
        lines = self.log.read_text().splitlines(keepends=True) if self.log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def stacks(self, incident):
        return (self.dir / f"incident_{incident}" / "stacks.txt").read_text()

    # ---- who it is ----

    def processes(self):
        """{pid: command line} of all processes of this run that are alive."""
        mark = f"{MARK}={self.folder}".encode()
        found = {}
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                if mark in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found[pid] = command_line(pid)
            except OSError:
                continue  # gone, or not ours to look at
        return found

    def starter(self):
        found = [pid for pid, command in self.processes().items() if command[1:2] == ["starter"]]
        return found[0] if found else None

    def pids(self):
        """Of the workers, by rank."""
        return [rank["pid"] for rank in self.status().get("ranks", [])]

    # ---- waiting ----

    def wait(self, what, condition, timeout=60, watched=True):
        """Until condition() is true, which it returns. `watched`: a watcher that ends before that is a failure."""
        deadline = time.monotonic() + timeout
        while True:
            result = condition()
            if result:
                return result
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout} s in vain for: {what}\n{self}")
            if watched and self.watcher.poll() is not None and not condition():
                raise AssertionError(f"the watcher ended with {self.watcher.returncode} before: {what}\n{self}")
            time.sleep(POLL_S)

    def wait_for_step(self, step, epoch=1, watched=True):
        """Until rank 0 has written this step or a later one down, in this epoch or a later one."""
        def there():
            return any(line["step"] >= step and line["epoch"] >= epoch for line in self.steps())

        self.wait(f"step {step} in epoch {epoch}", there, watched=watched)

    def hold(self, what, seconds, never):
        """Lets a disturbance last, and fails as soon as what must never happen does."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if never():
                raise AssertionError(f"{what}\n{self}")
            time.sleep(POLL_S)

    def finish(self, code=0, timeout=120):
        """Until the watcher ends, with this exit status; then nothing of the run may be left."""
        try:
            ended = self.watcher.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s\n{self}") from None
        if ended != code:
            raise AssertionError(f"exit status {ended}, expected {code}\n{self}")
        self.assert_nothing_left()

    def assert_nothing_left(self):
        deadline = time.monotonic() + 5  # the last of them may be on its way out
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self.test.assertEqual({}, left, self)
        self.test.assertEqual(set(), shared_memory.left(self.shared_memory), self)

    def assert_undisturbed_result(self, steps=STEPS, words=()):
        """The job ended with the bits of a run in which nothing ever happened. `words`: its further arguments."""
        expected, found = undisturbed(steps, python=self.python, words=words), json.loads(self.out.read_text())
        for part in expected:
            self.test.assertEqual(expected[part], found.get(part), f"{part} differ\n{self}")

    # ---- the end ----

    def _clear_away(self):
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)
        for process in self.started:
            process.wait(10)
        if not os.environ.get("LOCKSTEP_E2E_KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)

    def __str__(self):
        parts = [f"--- {' '.join(map(str, self.watcher.args))}"]
        for number in range(len(self.started)):
            ended = self.started[number].poll()
            parts.append(f"--- stderr {number}, exit status {ended}\n{self.stderr(number)[-3000:]}")
        for subcommand in ("incidents", "status"):
            answer = self.ask(subcommand, "--json")
            said = (answer.stdout + answer.stderr)[-6000:]
            parts.append(f"--- {subcommand} (exit status {answer.returncode})\n{said}")
        starter_log = self.dir / "starter.log"
        if starter_log.exists():
            parts.append(f"--- starter.log\n{starter_log.read_text(errors='replace')[-2000:]}")
        return "\n".join(parts)


class RunTest(unittest.TestCase):
    """What incidents must look like, whatever the fault. Runs have this interpreter and user, unless they are given others."""
    python, uid = PYTHON, None

    def folder(self):
        """A new one that everybody may read."""
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-e2e-", dir="/tmp")))
        path.chmod(0o755)
        return path

    def assert_repaired(self, run, ranks, symptoms):
        """One incident per entry of `ranks`, in that order: certain, about that rank alone, repaired and closed."""
        incidents = run.faults()
        self.assertEqual([[str(rank)] for rank in ranks], run.suspects(), run)
        for incident in incidents:
            self.assertIn(incident["symptom"], symptoms, run)
            self.assertEqual([], incident["ambiguous_with"], run)
            self.assertTrue(any(action["kind"] == "restart" and action["done"] for action in incident["actions"]), run)
            self.assert_well_formed(incident, run)
        self.assertEqual(len(ranks) + 1, run.epoch(), run)

    def assert_well_formed(self, incident, run):
        self.assertLessEqual(INCIDENT_FIELDS, incident.keys(), run)
        self.assertEqual(PHASES, incident["phases"].keys(), run)
        self.assertTrue(all(seconds >= 0 for seconds in incident["phases"].values()), run)
        self.assertGreater(sum(incident["phases"].values()), 0, run)
        self.assertGreaterEqual(incident["steps_lost"], 0, run)
        self.assertIsNotNone(incident["closed"], run)

    def assert_never_restarted(self, run):
        """The job was left alone; what was said of it compelled nothing, and is over."""
        self.assertEqual(1, run.epoch(), run)
        for incident in run.incidents():
            self.assertFalse(incident["certain"] and incident["symptom"] not in SLOWNESS, run)
            self.assertIsNotNone(incident["closed"], run)
            self.assertFalse(any(action["kind"] == "restart" for action in incident["actions"]), run)


def undisturbed(steps=STEPS, ranks=4, python=PYTHON, words=()):
    """The digests of jobs/ddp.py started without Lockstep and left alone. Computed once per version of the files."""
    CACHE.mkdir(parents=True, exist_ok=True)
    variant = hashlib.sha256(repr((python, words)).encode()).hexdigest()[:8]
    path = CACHE / f"{version_of_the_job()}-{steps}-{ranks}-{variant}.json"
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            train_without_lockstep(path, steps, ranks, python, words)
    return json.loads(path.read_text())


def undocumented(document, page, named=()):
    """The keys of a document of `--json` that docs/formats/PAGE does not have. What lies below those in `named` has names of its own for keys."""
    words = set(re.findall(r"\w+", " ".join(re.findall("`([^`]*)`", (ROOT / "docs/formats" / page).read_text()))))

    def keys(value):
        if isinstance(value, list):
            return set().union(*map(keys, value))
        if not isinstance(value, dict):
            return set()
        return set(value).union(*(keys(below) for key, below in value.items() if key not in named))

    return keys(document) - words


def version_of_the_job():
    files = [*JOBS.glob("*.py"), ROOT / "examples/fingerprint.py", *(ROOT / "python/lockstep").rglob("*.py")]
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


def train_without_lockstep(path, steps, ranks, python, words):
    port = free_port()
    shared = {**inherited(), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
              "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "python"), "USE_LIBUV": "0"}
    command = [python, str(JOBS / "ddp.py"), "--out", str(path), *ddp(steps, step_time=0), *words]
    workers = [subprocess.Popen(command, env={**shared, "RANK": str(rank)}) for rank in range(ranks)]
    try:
        ended = [worker.wait(120) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    if any(ended):
        raise AssertionError(f"the undisturbed run ended with {ended}")


def inherited():
    """Our environment without what would steer Lockstep, Python or torch."""
    steering = ("LOCKSTEP_", "PYTHON", "VIRTUAL_ENV", "XDG_RUNTIME_DIR", "OMP_", "OPENBLAS_", "MKL_", "TORCHELASTIC_",
                "PET_")
    return {name: value for name, value in os.environ.items() if not name.startswith(steering)}


def identity(uid):
    return {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}


def take_terminal():
    """In the child: standard input becomes its controlling terminal."""
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def command_line(pid):
    return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]


def stat_of(pid):
    """The fields of /proc/PID/stat behind the name: state, parent, ...; None for each when the process is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None, None


def state_of(pid):
    """Its letter; None when the process is gone."""
    return stat_of(pid)[0]


def children(parent):
    return sorted(int(pid) for pid in os.listdir("/proc") if pid.isdigit() and stat_of(pid)[1] == str(parent))


def alive(pid):
    return state_of(pid) not in (None, "Z", "X")


def kill(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
