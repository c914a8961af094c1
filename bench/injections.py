"""Real faults in real jobs: whom do the incidents name? 1,000 strikes of eight kinds at random ranks, at random moments of a step.

Several jobs at once share the cores, so that ranks are often late for no reason of their own.
"""
import collections
import concurrent.futures
import datetime
import json
import random
import signal
import subprocess
import time

import figure
import session
import stats

RANKS = 4
JOBS = 4
STRIKES = 1000
STEPS_BETWEEN = 3

# The job (jobs/victim.py) carries these out itself.
ASKED = {kind: signal.SIGRTMIN + number for number, kind in enumerate(("exception", "exit", "hold-gil", "block"), start=1)}
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSEGV": signal.SIGSEGV, "SIGABRT": signal.SIGABRT, "SIGSTOP": signal.SIGSTOP, **ASKED}
# Of 100 strikes. Hangs are rarer, because each waits for 10 s (blocked) or 60 s of processor time (spinning) of evidence.
SHARES = {"SIGKILL": 36, "SIGSEGV": 10, "SIGABRT": 10, "exception": 10, "exit": 10, "SIGSTOP": 16, "hold-gil": 4, "block": 4}

Strike = collections.namedtuple("Strike", "at kind rank")  # at: s since 1970, as incidents have it


def measure(tools, quick):
    each = (40 if quick else STRIKES) // JOBS
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        verdicts = sum(pool.map(lambda seed: one_job(tools, each, seed), range(JOBS)), [])
    wrong = [f"{strike.kind} of rank {strike.rank}: {text}" for strike, verdict, text in verdicts if verdict == "wrong"]
    nobody = [f"{strike.kind} of rank {strike.rank}: {text}" for strike, verdict, text in verdicts if verdict == "nobody"]
    counts = collections.Counter(strike.kind for strike, _, _ in verdicts)
    note = f"{JOBS} jobs of {RANKS} ranks at once; " + ", ".join(f"{count} {kind}" for kind, count in counts.items())
    return [
        figure.single("real faults for which another rank was named", "", len(wrong), goal=0,
                      note="; ".join([note, stats.rate_bound(len(wrong), len(verdicts)), *wrong[:3]])),
        figure.single("real faults for which nobody was named", "", len(nobody), goal=0, note="; ".join(nobody[:3])),
    ]


def one_job(tools, count, seed):
    """[(strike, "right" | "wrong" | "nobody", what was said)]"""
    chance = random.Random(seed)
    kinds = chance.choices(list(SHARES), list(SHARES.values()), k=count)
    words = [f"{kind}:{int(number)}" for kind, number in ASKED.items()]
    with session.Session(tools, [session.job("victim.py"), *words], RANKS, ["--max-restarts", str(2 * count)]) as run:
        strikes = [strike(run, epoch, kind, chance) for epoch, kind in enumerate(kinds, start=1)]
        run.running(count + 1, STEPS_BETWEEN)
        incidents = json.loads(subprocess.check_output([tools.binary, "incidents", "--run", run.run_dir, "--json"]))
    return judge(strikes, incidents)


def strike(run, epoch, kind, chance):
    ranks = run.running(epoch, STEPS_BETWEEN)["ranks"]
    time.sleep(chance.uniform(0, 0.1))
    victim = chance.choice(ranks)
    session.strike(victim["pid"], SIGNALS[kind])
    return Strike(time.time(), kind, victim["rank"])


def judge(strikes, incidents):
    """Wrong: an incident after the strike and before the next one names somebody else, certainly or with a restart."""
    verdicts = []
    ends = [strike.at for strike in strikes[1:]] + [float("inf")]
    for one, end in zip(strikes, ends):
        named, verdict, text = [{"kind": "rank", "name": str(one.rank)}], "nobody", "no incident"
        for incident in incidents:
            if not one.at - 0.1 <= opened(incident) < end - 0.1 or not acted_on(incident):
                continue
            text = incident["headline"]
            verdict = "right" if incident["suspects"] == named and verdict != "wrong" else "wrong" if incident["suspects"] else verdict
        verdicts.append((one, verdict, text))
    return verdicts


def opened(incident):
    return datetime.datetime.strptime(incident["opened"], "%Y-%m-%dT%H:%M:%S.%f%z").timestamp()


def acted_on(incident):
    return incident["certain"] or any(action["kind"] == "restart" for action in incident["actions"])
