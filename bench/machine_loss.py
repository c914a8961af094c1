"""From the loss of a machine to the first step of the job with a standby in its place. Machines are folders of one: all processes of one die at once."""
import contextlib
import os
import signal
import statistics
import tempfile
import time

import figure
import session

RANKS = 2  # of each node
GOAL_S = 3
AWAITED_STEPS = 12


def measure(tools, quick):
    losses = [one_loss(tools) for _ in range(1 if quick else 8)]
    moments = ", ".join(f"{name} {statistics.median(loss[name] for loss in losses):.3f} s" for name in losses[0] if name != "steps lost")
    return [
        figure.from_samples("machine lost to the first step with a standby", "s", [loss["first step"] for loss in losses], goal=GOAL_S, judged="max",
                            note=f"train_gpt.py, 2 nodes of {RANKS} ranks, SIGKILL of all processes of the one that has not rank 0; no disk: its part of the checkpoint comes from the other's memory; "
                                 f"median after the kill of: {moments}"),
        figure.from_samples("... steps lost", "", [loss["steps lost"] for loss in losses], note="back to the newest checkpoint that the other node keeps"),
    ]


def one_loss(tools):
    """Seconds after the loss, by what had happened; and the steps that were computed again."""
    port = session.free_port()
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder, contextlib.ExitStack() as nodes:
        lines = session.Lines(os.path.join(folder, "log"))
        command = [session.EXAMPLE, "--steps", "100000000", "--log", lines.path]
        common = ["--nnodes", "2"]

        def node(name, *words):
            return nodes.enter_context(session.Session(tools, command, RANKS, ["--node-name", name, *common, *words]))

        meets = ["--rdzv-endpoint", f"127.0.0.1:{port}"]
        first = node("a", "--node-rank", "0", "--standbys", "1", *meets)
        second = node("b", "--node-rank", "1", *meets)
        session.wait_for(lambda: lines.first(lambda *_: True), "first step")
        spare = node("s", "--coordinator", f"127.0.0.1:{port}")
        session.wait_for(lambda: (first.status() or {}).get("standbys") or None, "standby")
        session.wait_for(lambda: lines.first(lambda _, line: line["step"] >= AWAITED_STEPS), "some steps")
        time.sleep(1)  # its Python is warm
        before = first.last_sequence()
        at = lose(second)
        spawned = first.wait_event("epoch_spawned", before)
        begun = first.wait_event("loop_began", before)
        done = max(line["step"] for when, line in lines.all if when < spawned.at)
        stepped, line = session.wait_for(lambda: lines.first(lambda when, _: when > spawned.at), "step after the restart")
        moments = {"death heard of": first.wait_event("rank_exited", before).at, "all ended": first.wait_event("epoch_stopped", before).at,
                   "started": spawned.at, "loop begun": begun.payload["begin_ns"], "first step": stepped}
        for run in (first, spare):
            run.ask("stop")
        for run in (first, spare):
            run.process.wait(30)
        lines.close()
    return {**{name: (moment - at) / 1e9 for name, moment in moments.items()}, "steps lost": done + 1 - line["step"]}


def lose(node):
    """All of its processes at once; returns the moment just before."""
    pids = [node.process.pid, *family(node.starter_pid())]
    at = session.boottime_ns()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.process.wait(10)
    return at


def family(ancestor):
    """It and all its descendants."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
            children.setdefault(int(file.read().rsplit(")", 1)[1].split()[1]), []).append(int(name))
    found = [ancestor]
    for pid in found:
        found += children.get(pid, [])
    return found
