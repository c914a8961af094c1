"""What it costs to keep each checkpoint in the memory of another node too, and how fast it comes back from there. Nodes are folders of one machine."""
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time

import checkpoint
import figure
import session

MEGABYTES = 400  # in all, none of them a replica
NODES, RANKS = 2, 2


def measure(tools, quick):
    size = (2, 4) if quick else (8, 9)
    return [*replication(tools, size, 0.55, "half of the cores idle", goal=5), *replication(tools, size, 0, "no core idle", goal=None), *rates(tools)]


def replication(tools, size, rest_s, name, goal):
    """Checkpoints at every step, each copied to the other node, against steps without any."""
    pairs, steps = size
    rows, counts = run_job(tools, pairs, steps, rest_s)
    ratios = [100 * (ratio - 1) for ratio in checkpoint.pair_ratios(rows[0], pairs)]
    plain = statistics.median(row["seconds"] for row in rows[0] if not row["with"])
    peers = counts["peers"]
    note = (f"{NODES} nodes of {RANKS} ranks, {MEGABYTES} MB in all, unlike in each rank and step, beside a step of {plain:.2f} s; {counts['taken']} taken, "
            f"{counts['skipped']} skipped; node a sent {peers['sent_bytes'] / 1e6:.0f} MB")
    return [figure.from_ratios(f"checkpoint kept by a peer, {name}: inflates a step", "%", ratios, goal=goal, note=note),
            figure.single(f"... {name}: checkpoints skipped, for the one before was not kept yet", "%",
                          100 * counts["skipped"] / max(1, counts["taken"] + counts["skipped"]))]


def run_job(tools, pairs, steps, rest_s):
    """(rows of each rank, the newest counts of checkpoints)."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder, contextlib.ExitStack() as nodes:
        out, port = os.path.join(folder, "result"), session.free_port()
        command = [session.job("large_state.py"), "--megabytes", str(MEGABYTES / NODES / RANKS), "--pairs", str(pairs), "--steps", str(steps), "--out", out,
                   "--unique", "--rest", str(rest_s)]
        runs = [nodes.enter_context(session.Session(tools, command, RANKS, [
            "--nnodes", str(NODES), "--node-name", "ab"[node], "--node-rank", str(node), "--rdzv-endpoint", f"127.0.0.1:{port}"])) for node in range(NODES)]
        counts = {}
        while runs[0].process.poll() is None:
            counts = checkpoint.newest_counts(runs[0]) or counts
            time.sleep(1)
        if runs[0].process.returncode != 0:
            raise RuntimeError(f"the job failed:\n{runs[0].said()[-2000:]}")
        runs[1].process.wait(30)
        return [checkpoint.read(f"{out}.{rank}") for rank in range(NODES * RANKS)], counts


def rates(tools):
    answer = json.loads(subprocess.run([tools.keep_rate], stdout=subprocess.PIPE, check=True, timeout=300).stdout)
    shares = [100 * fetched / plain for fetched, plain in zip(answer["fetched"], answer["loopback"])]
    return [
        figure.from_samples("baseline: 4 plain connections of loopback", "GB/s", answer["loopback"]),
        figure.from_samples("a checkpoint comes back from its keeper", "GB/s", answer["fetched"], note="4 slots of 100 MB, with their CRCs"),
        figure.from_samples("... of what the plain connections carry", "%", shares, goal=70, at_least=True, note="by rounds"),
        figure.from_samples("a checkpoint gets to its keeper", "GB/s", answer["kept"], note="with its hashes, one connection"),
    ]
