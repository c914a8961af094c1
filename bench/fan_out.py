"""A restart of a job of 1,024 nodes: the shipped coordinator, simulated agents, the real protocol over loopback (fan_out.cc)."""
import json
import subprocess

import figure

AGENTS = 1024


def measure(tools, quick):
    agents, rounds = (64, 2) if quick else (AGENTS, 12)
    answer = json.loads(subprocess.run([tools.fan_out, str(agents), str(rounds)], stdout=subprocess.PIPE, check=True, timeout=300).stdout)
    what = f"{agents} agents in another process of the same machine, which answer at once; all there and told to begin after {answer['joined_s']:.1f} s"
    return [
        figure.from_samples(f"a death until {agents} agents are told to kill", "s", answer["killed_s"], note=what),
        figure.from_samples(f"a death until {agents} agents are told to begin anew", "s", answer["spawned_s"], goal=0.5, judged="max",
                            note="said by one agent; killed, verified and spawned in no time, so this is the coordinator's part"),
    ]
