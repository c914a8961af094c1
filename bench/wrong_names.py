"""How often the detector names a rank that is not to blame, over many planted faults (wrong_names.cc). Simulated."""
import json
import subprocess

import figure
import stats

INJECTIONS = 100_000


def measure(tools, quick):
    count = 2_000 if quick else INJECTIONS
    half = count // 2  # two processes, of different seeds
    running = [subprocess.Popen([tools.wrong_names, str(half), str(1 + number * half)], stdout=subprocess.PIPE) for number in range(2)]
    answers = [json.loads(process.communicate()[0]) for process in running]
    wrong, nobody, total = (sum(answer[name] for answer in answers) for name in ("wrong", "nobody", "injections"))
    examples = "; ".join(example for answer in answers for example in answer["wrong_examples"])
    note = "; ".join(filter(None, [f"simulated; {total} faults of 7 kinds in jobs of 2 to 8 ranks", stats.rate_bound(wrong, total), examples]))
    return [
        figure.single("faults for which another rank was named", "", wrong, goal=0, note=note),
        figure.single("faults for which nobody was named within 60 s", "", nobody, goal=0),
    ]
