"""A stopped rank is named: from SIGSTOP to the certain finding that names it."""
import signal
import statistics

import figure
import session

RANKS = 4
LEAST_S = 2.0


def measure(tools, quick):
    count = 2 if quick else 12
    with session.Session(tools, [session.EXAMPLE, "--steps", "100000000"], RANKS) as run:
        results = [stop_one(run, index) for index in range(count)]
    delays = [delay for delay, _, _ in results]
    limits = [max(3 * step_time, LEAST_S) for _, step_time, _ in results]
    wrong = sum(not right for _, _, right in results)
    limit = statistics.median(limits)
    return [
        figure.from_samples("stopped rank named", "s", delays, goal=limit, judged="max",
                            note=f"SIGSTOP of each of {RANKS} ranks of train_gpt.py in turn; the goal is max(3 steps, 2 s), step time here "
                                 f"{statistics.median([step for _, step, _ in results]):.3f} s"),
        figure.single("stopped rank: wrong names", "", wrong, goal=0),
    ]


def stop_one(run, index):
    """(delay in s, step time in s, whether that rank and nobody else was named)."""
    ranks = run.running(epoch=index + 1, steps=8)["ranks"]
    victim = ranks[index % RANKS]
    before = run.last_sequence()
    at = session.strike(victim["pid"], signal.SIGSTOP)
    event = run.wait_event("suspected", before, lambda payload: payload["finding"]["certain"])
    finding = event.payload["finding"]
    right = finding["syndrome"] == "stopped" and [suspect["name"] for suspect in finding["suspects"]] == [str(victim["rank"])]
    return (event.at - at) / 1e9, statistics.median([rank["step_time_s"] for rank in ranks]), right
