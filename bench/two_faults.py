"""Two faults at once, and a fault while another one is being repaired: from the first one until the job does a step that was not done before."""
import signal

import figure
import machines
import session


def measure(tools, quick):
    rounds = 1 if quick else 5
    figures = []
    for name, hurt in (("a machine and a rank of another one at once", machine_and_rank), ("a machine, and a rank while the standby takes over", rank_meanwhile),
                       ("two ranks of two machines at once", two_ranks)):
        figures.append(figure.from_samples(f"{name}: to a new step", "s", [until_new_step(tools, hurt) for _ in range(rounds)],
                                           note=f"train_gpt.py, 2 nodes of {machines.RANKS} ranks and a standby, no disk; SIGKILL"))
    return figures


def machine_and_rank(job):
    victim = rank_of(job.first, 0)
    at = machines.power_off(job.second)
    session.kill(victim)
    return at


def rank_meanwhile(job):
    """As soon as the first epoch with the standby has processes, a rank of it is killed, whatever it is doing."""
    before = job.first.last_sequence()
    at = machines.power_off(job.second)
    job.first.wait_event("epoch_spawned", before)
    session.kill(session.wait_for(lambda: rank_of(job.first, 1), "rank of the new epoch"))
    return at


def two_ranks(job):
    victims = rank_of(job.first, 0), rank_of(job.first, 3)
    at = session.boottime_ns()
    for victim in victims:
        session.strike(victim, signal.SIGKILL)
    return at


def rank_of(run, rank):
    """Its pid, or None while it has none."""
    status = run.status() or {}
    return next((one["pid"] for one in status.get("ranks", []) if one["rank"] == rank and one["pid"]), None)


def until_new_step(tools, hurt):
    with machines.Machines(tools) as job:
        at = hurt(job)
        done = job.done(at)
        stepped, _ = session.wait_for(lambda: job.lines.first(lambda when, line: when > at and line["step"] > done + 1), "new step")
    return (stepped - at) / 1e9
