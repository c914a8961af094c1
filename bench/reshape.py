"""How fast tensors of a file of torch.save are read, and imported, without torch: from the page cache, against torch.load and a plain read."""
import json
import os
import subprocess
import tempfile
import time

import figure
import session

MEGABYTES = 400


def measure(tools, quick):
    rounds = 3 if quick else 15
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        env = {**os.environ, "LOCKSTEP_BINARY": tools.binary, "PYTHONPATH": os.path.join(session.ROOT, "python")}
        command = [tools.python, session.job("read_rate.py"), folder, str(MEGABYTES), str(rounds)]
        samples = json.loads(subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, timeout=600).stdout)
        samples["import"] = [imported(tools, folder, str(number)) for number in range(rounds)]
    rates = {name: [MEGABYTES / 1e3 / seconds for seconds in taken] for name, taken in samples.items()}
    note = f"{MEGABYTES} MB in 8 tensors of float32, in the page cache"
    return [
        figure.from_samples("baseline: the file into one array", "GB/s", rates["plain"], note=note),
        figure.from_samples("baseline: torch.load", "GB/s", rates["torch"]),
        figure.from_samples("lockstep.reshape: all tensors into arrays of their own", "GB/s", rates["whole"]),
        figure.from_samples("lockstep.reshape: half of the columns of each", "GB/s", [rate / 2 for rate in rates["half"]], note="of what is wanted"),
        figure.from_samples("lockstep checkpoint import, one rank", "GB/s", rates["import"], note="read, compared with its sums, written and synced"),
    ]


def imported(tools, folder, name):
    began = time.perf_counter()
    subprocess.run([tools.binary, "checkpoint", "import", os.path.join(folder, "saved.pt"), "--out", os.path.join(folder, name), "--world", "1", "--step", "1"],
                   stdout=subprocess.DEVNULL, check=True, timeout=300)
    seconds = time.perf_counter() - began
    subprocess.run(["rm", "-r", os.path.join(folder, name)], check=True)
    return seconds
