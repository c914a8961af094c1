"""From `lockstep update --code DIR --now` to the first step of the new code of the demo job, the agents keeping their processes.

A step of the new code is one that rank 0 logs with the new code's number; it needs all ranks. The request begins when the command is
started, as a user would; "from the event" counts from the moment when the coordinator has written the request down.
"""
import os
import shutil
import statistics
import tempfile

import figure
import session
import subprocess

RANKS = 4
GOAL_S = 1.0
STEPS = ["--steps", "100000000"]
LOGGED = 'json.dumps({"step"'


def measure(tools, quick):
    updates = update_times(tools, 3 if quick else 20)
    whole, after = ([one[name] for one in updates] for name in ("request", "event"))
    spent = ", ".join(f"{name} {statistics.median(one[name] for one in updates):.3f} s" for name in updates[0])
    lost = [one["steps lost"] for one in updates]
    return [
        figure.from_samples("update request to first step of the new code", "s", whole, goal=GOAL_S, judged="p95",
                            note=f"train_gpt.py, {RANKS} ranks, each update to other code; agent and starter keep their pids; medians from the start of the command: "
                                 f"{spent}; steps lost: at most {max(lost):g}"),
        figure.from_samples("update written down to first step of the new code", "s", after, goal=GOAL_S, judged="p95", note="without the start of the command"),
    ]


def update_times(tools, count):
    folder = tempfile.mkdtemp(prefix="lockstep-bench-")
    lines = session.Lines(os.path.join(folder, "log"))
    policy = os.path.join(folder, "policy.toml")
    with open(policy, "w") as file:
        file.write("[update]\nsteps = 5\nslower = 10000\n")
    script = version(folder, 0)
    with session.Session(tools, [script, *STEPS, "--log", lines.path], RANKS, ["--policy", policy]) as run:
        processes = run.process.pid, None
        run.running(steps=4)
        processes = run.process.pid, run.starter_pid()
        updates = [one_update(tools, run, lines, folder, number) for number in range(1, count + 1)]
        if processes != (run.process.pid, run.starter_pid()):
            raise RuntimeError("an agent or a starter was started anew")
    lines.close()
    shutil.rmtree(folder)
    return updates


def version(folder, number):
    """The example's directory, whose script logs the number of the version; the path of the script."""
    target = os.path.join(folder, f"v{number}")
    shutil.copytree(os.path.dirname(session.EXAMPLE), target)
    script = os.path.join(target, os.path.basename(session.EXAMPLE))
    with open(script) as file:
        text = file.read()
    if LOGGED not in text:
        raise RuntimeError(f"{script} has no {LOGGED}: where does it log its steps?")
    with open(script, "w") as file:
        file.write(text.replace(LOGGED, f'json.dumps({{"version": {number}, "step"'))
    return script


def one_update(tools, run, lines, folder, number):
    code = os.path.dirname(version(folder, number))
    run.running(epoch=number, steps=4)
    session.wait_for(lambda: True if number == 1 or run.status()["versions"][-1]["stage"] == "good" else None, "version accepted")
    before = run.last_sequence()
    at = session.boottime_ns()
    subprocess.run([tools.binary, "update", "--run", run.run_dir, "--code", code, "--now"], check=True, stdout=subprocess.DEVNULL)
    asked = run.wait_event("update_asked", before)
    copied = run.wait_event("code_kept", before)
    first = session.wait_for(lambda: lines.first(lambda _, line: line.get("version") == number), "step of the new code")
    last_old = max(line["step"] for _, line in list(lines.all) if line.get("version") == number - 1)
    moments = {"written down": asked.at, "copied": copied.at, "all ended": run.wait_event("epoch_stopped", before).at,
               "started": run.wait_event("epoch_spawned", before).at, "loop begun": run.wait_event("loop_began", before).payload["begin_ns"],
               "request": first[0]}
    seconds = {name: (moment - at) / 1e9 for name, moment in moments.items()}
    return {**seconds, "event": (first[0] - asked.at) / 1e9, "steps lost": max(0, last_old + 1 - first[1]["step"])}
