"""From the loss of a machine to the first step of the job with a standby in its place."""
import statistics

import figure
import machines

GOAL_S = 3


def measure(tools, quick):
    losses = [one_loss(tools) for _ in range(1 if quick else 8)]
    moments = ", ".join(f"{name} {statistics.median(loss[name] for loss in losses):.3f} s" for name in losses[0] if name != "steps lost")
    return [
        figure.from_samples("machine lost to the first step with a standby", "s", [loss["first step"] for loss in losses], goal=GOAL_S, judged="max",
                            note=f"train_gpt.py, 2 nodes of {machines.RANKS} ranks, SIGKILL of all processes of the one that has not rank 0; no disk: its part of the checkpoint comes from the other's memory; "
                                 f"median after the kill of: {moments}"),
        figure.from_samples("... steps lost", "", [loss["steps lost"] for loss in losses], note="back to the newest checkpoint that the other node keeps"),
    ]


def one_loss(tools):
    """Seconds after the loss, by what had happened; and the steps that were computed again."""
    with machines.Machines(tools) as job:
        first = job.first
        before = first.last_sequence()
        at = machines.power_off(job.second)
        spawned = first.wait_event("epoch_spawned", before)
        begun = first.wait_event("loop_began", before)
        stepped, line = job.stepped(spawned.at)
        moments = {"death heard of": first.wait_event("rank_exited", before).at, "all ended": first.wait_event("epoch_stopped", before).at,
                   "started": spawned.at, "loop begun": begun.payload["begin_ns"], "first step": stepped}
        done = job.done(spawned.at)
    return {**{name: (moment - at) / 1e9 for name, moment in moments.items()}, "steps lost": done + 1 - line["step"]}
