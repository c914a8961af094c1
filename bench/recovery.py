"""From a crash to the first new step of the demo job: under Lockstep by zygote and by exec, and under torchrun.

A step counts as done when rank 0 logs it, which needs all ranks. "New" is a step beyond the last one done before the crash,
so that recomputed steps don't count. torchrun's script has no checkpoint and begins at step 0 again: its first step of the
new generation counts, without any time for loading or recomputing, which is in its favour.
"""
import os
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

import figure
import session

RANKS = 4
GOAL_S = 0.5
STEPS = ["--steps", "100000000"]


def measure(tools, quick):
    zygote, noticed, phases = lockstep_times(tools, "zygote", 4 if quick else 24)
    by_exec, _, _ = lockstep_times(tools, "exec", 1 if quick else 6)
    polls = {"5": 1 if quick else 4, "0.1": 1 if quick else 4}
    baselines = {poll: torchrun_times(tools, poll, count) for poll, count in polls.items()}
    spent = ", ".join(f"{name} {statistics.median(times):.3f} s" for name, times in phases.items())
    ratio = statistics.median(baselines["0.1"]) / statistics.median(zygote)
    return [
        figure.from_samples("crash to first new step, zygote", "s", zygote, goal=GOAL_S, judged="p95",
                            note=f"train_gpt.py, {RANKS} ranks, SIGKILL of each rank in turn at a random moment; median after the kill of: {spent}"),
        figure.from_samples("crash to first new step, exec", "s", by_exec, note="the same with --start-method exec: pays the import of torch"),
        figure.from_samples("crash to first step, torchrun, 5 s poll", "s", baselines["5"], note="torchrun's default; without checkpoint"),
        figure.from_samples("crash to first step, torchrun, 0.1 s poll", "s", baselines["0.1"],
                            note=f"--monitor_interval=0.1; median {ratio:.1f} times that of the zygote"),
        figure.from_samples("crash of the demo job noticed", "ms", noticed,
                            note="as `crash noticed`, but the kernel has a torch process to take apart before its end is known"),
    ]


# ---- Lockstep -------------------------------------------------------------------------------------------------------------


def lockstep_times(tools, method, count):
    """(seconds to the first new step, milliseconds until noticed, {phase: seconds after the kill}) of `count` crashes."""
    folder = tempfile.mkdtemp(prefix="lockstep-bench-")
    lines = session.Lines(os.path.join(folder, "log"))
    command = [session.EXAMPLE, *STEPS, "--log", lines.path]
    with session.Session(tools, command, RANKS, ["--start-method", method]) as run:
        crashes = [one_crash(run, lines, index) for index in range(count)]
    lines.close()
    shutil.rmtree(folder)
    phases = {name: [crash[name] for crash in crashes] for name in crashes[0] if name not in ("new", "noticed_ms")}
    return [crash["new"] for crash in crashes], [crash["noticed_ms"] for crash in crashes], phases


def one_crash(run, lines, index):
    victim = run.running(epoch=index + 1, steps=4)["ranks"][index % RANKS]
    time.sleep(random.Random(index).uniform(0, victim["step_time_s"]))  # at any moment of a step
    before, last = run.last_sequence(), max(line["step"] for _, line in lines.all)
    at = session.kill(victim["pid"])
    exited = run.wait_event("rank_exited", before, lambda payload: payload["rank"] == victim["rank"])
    spawned = run.wait_event("epoch_spawned", before)
    done_before = max([last] + [line["step"] for when, line in lines.all if when < spawned.at])
    first = await_line(lines, lambda when, _: when > spawned.at)
    new = await_line(lines, lambda when, line: when > spawned.at and line["step"] > done_before)
    begun = run.wait_event("loop_began", before)
    moments = {"noticed": exited.at, "all ended": run.wait_event("epoch_stopped", before).at, "started": spawned.at,
               "loop begun": begun.payload["begin_ns"], "first step": first, "new step": new}
    seconds = {name: (moment - at) / 1e9 for name, moment in moments.items()}
    return {**seconds, "new": seconds["new step"], "noticed_ms": 1000 * seconds["noticed"]}


def await_line(lines, accept):
    """When the first such line came."""
    return session.wait_for(lambda: lines.first(accept), "step after the restart")[0]


# ---- torchrun -------------------------------------------------------------------------------------------------------------


def torchrun_times(tools, poll, count):
    """Seconds from a crash to the first step of the next generation."""
    folder = tempfile.mkdtemp(prefix="lockstep-bench-")
    lines = session.Lines(os.path.join(folder, "log"))
    command = [tools.python, os.path.join(session.HERE, "torchrun.py"), "--nproc_per_node", str(RANKS), "--monitor_interval", poll,
               "--max_restarts", "100", "--master_port", str(session.free_port()), session.EXAMPLE, *STEPS, "--log", lines.path]
    environment = {**os.environ, "PYTHONPATH": os.path.join(session.ROOT, "python"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        return [one_torchrun_crash(process, lines, index) for index in range(count)]
    finally:
        end_group(process)
        lines.close()
        shutil.rmtree(folder)


def one_torchrun_crash(process, lines, index):
    seen = len(lines.all)
    session.wait_for(lambda: True if len(lines.all) >= seen + 5 else None, "steps under torchrun")
    victims = children(process.pid)
    at = session.kill(victims[index % len(victims)])
    return (await_line(lines, lambda when, line: when > at and line["step"] == 0) - at) / 1e9


def children(parent):
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                if int(file.read().rsplit(")", 1)[1].split()[1]) == parent:
                    found.append(int(name))
        except OSError:
            continue  # it has just ended
    return sorted(found)


def end_group(process):
    """torchrun gives its workers sessions of their own or not, by version: both are ended."""
    workers = children(process.pid)
    for pid in [process.pid, *workers]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()
