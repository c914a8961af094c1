"""How long the stacks of 10,000 agents take, from their text to a verdict, on one core (stack_groups.cc). Simulated."""
import json
import subprocess

import figure

AGENTS = 10_000


def answer_of(tools, agents, ranks, rounds):
    return json.loads(subprocess.run([tools.stack_groups, str(agents), str(ranks), str(rounds)], stdout=subprocess.PIPE, check=True, timeout=600).stdout)


def measure(tools, quick):
    agents, rounds = (1_000, 2) if quick else (AGENTS, 9)
    figures = []
    for ranks in (1, 8):
        answer = answer_of(tools, agents, ranks, rounds)
        what = f"{agents} agents, {ranks} {'rank' if ranks == 1 else 'ranks'} each"
        size = f"{answer['processes']} processes with helpers, {answer['frames']} frames, {answer['mb']:.0f} MB of text; simulated"
        whole = [parse + decide for parse, decide in zip(answer["parse_s"], answer["decide_s"])]
        figures += [
            figure.from_samples(f"stacks decided, {what}", "s", answer["decide_s"], goal=1, judged="max", note=size),
            figure.from_samples(f"... by who waits for whom, {what}", "s", answer["decide_by_logs_s"], goal=1, judged="max"),
            figure.from_samples(f"... from the text on, {what}", "s", whole, goal=1, judged="max"),
            figure.single(f"... verdicts that name another rank or more, {what}", "", 2 * rounds - answer["right"], goal=0),
        ]
    return figures
