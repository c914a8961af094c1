"""What the words of 10,000 nodes of 8 ranks cost the coordinator, on one core (coordinator_scale.cc): counting and deciding, without network and disk."""
import json
import subprocess

import figure

NODES = 10_000
WORDS = {
    "keepers_s": ("who keeps whose checkpoints", None),
    "begin_s": ("the job begins: all say that their ranks run, and that the loop began", None),
    "step_s": ("a step: the samples and the checkpoint of each", None),
    "probe_s": ("each is told its ring for a test", None),
    "lost_connections_s": ("all ranks leave, for one was killed", None),
    "stopped_s": ("all have stopped", None),
    "restore_s": ("all say where they could begin anew", None),
}


def measure(tools, quick):
    nodes, rounds = (992, 2) if quick else (NODES, 9)
    out = subprocess.run([tools.coordinator_scale, str(nodes), str(rounds)], stdout=subprocess.PIPE, check=True, timeout=600).stdout
    answer = json.loads(out)
    note = f"{answer['nodes']} nodes of 8 ranks, one core; agents simulated"
    return [figure.from_samples(what, "s", answer[name], goal=goal, judged="max", note=note) for name, (what, goal) in WORDS.items()]
