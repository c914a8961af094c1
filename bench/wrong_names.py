"""How often the detector names a rank that is not to blame, over many planted faults (wrong_names.cc). Simulated."""
import json
import subprocess

import figure

INJECTIONS = 100_000
CONFIDENCE = 0.95


def measure(tools, quick):
    count = 2_000 if quick else INJECTIONS
    half = count // 2  # two processes, of different seeds
    running = [subprocess.Popen([tools.wrong_names, str(half), str(1 + number * half)], stdout=subprocess.PIPE) for number in range(2)]
    answers = [json.loads(process.communicate()[0]) for process in running]
    wrong, nobody, total = (sum(answer[name] for answer in answers) for name in ("wrong", "nobody", "injections"))
    # With nothing seen in n tries, the rate is below 1 - 0.05^(1/n) with 95 % confidence.
    bound = 1 - (1 - CONFIDENCE) ** (1 / total)
    examples = "; ".join(example for answer in answers for example in answer["wrong_examples"])
    note = f"simulated; {total} faults of 7 kinds in jobs of 2 to 8 ranks; " + (
        f"none: the rate is below {bound:.1e} with {CONFIDENCE:.0%} confidence" if wrong == 0 else f"such as {examples}")
    return [
        figure.single("faults for which another rank was named", "", wrong, goal=0, note=note),
        figure.single("faults for which nobody was named within 60 s", "", nobody, goal=0),
    ]
