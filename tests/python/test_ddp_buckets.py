"""Holds the facts on which docs/bit-exact.md rests, with real DDP over gloo and without Lockstep:

(a) a fresh process that only loads the state goes on with other bits than the undisturbed run,
(b) after two discarded iterations, or with find_unused_parameters=True, it goes on with the same bits, and
(c) with gradient_as_bucket_view=True only if the discarded iterations leave gradients as the steps do: DDP divides those that are kept
    by the number of ranks, and multiplies those that were dropped by its inverse.

Three ranks: with two there is only one order in which to add, up to a + b = b + a, and for a power of two both ways of (c) are the same.
"""
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
except ImportError:
    torch = None

RANKS, STEPS, RESUME_AT = 3, 8, 4
WIDTH, BUCKET_MB = 48, 0.02  # 9 KB per layer: several buckets
WAYS = {  # name: (discarded iterations, whether zero_grad() drops gradients there, and in the steps, options of DDP)
    "bare": (0, True, True, {}),
    "warmed_up": (2, True, True, {}),
    "find_unused": (0, True, True, {"find_unused_parameters": True}),
    "dropped_views": (2, True, True, {"gradient_as_bucket_view": True}),
    "kept_views": (2, False, False, {"gradient_as_bucket_view": True}),
    "views_dropped_at_first": (2, True, False, {"gradient_as_bucket_view": True}),
}
LIMIT_S = 300


def train(way, folder, resume):
    """Trains steps [0, STEPS), or from the saved state those from RESUME_AT on; returns a digest of the parameters."""
    discarded, drops_first, drops, options = WAYS[way]
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.1))]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=BUCKET_MB, **options)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(discarded):
        model(torch.zeros(1, WIDTH)).sum().backward()
        model.zero_grad(set_to_none=drops_first)
    torch.manual_seed(100 + dist.get_rank())
    saved = os.path.join(folder, f"{way}.{dist.get_rank()}")
    if resume:
        load(saved, model, optimizer)
    for step in range(RESUME_AT if resume else 0, STEPS):
        if step == RESUME_AT and not resume:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
            torch.save(state, saved)
        model(torch.randn(8, WIDTH)).square().sum().backward()
        optimizer.step()
        model.zero_grad(set_to_none=drops)
    values = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(values).hexdigest()


def load(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])


def worker(folder, resume):
    """One rank of one start: goes through all the ways and prints their digests."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    print(json.dumps({way: train(way, folder, resume) for way in WAYS}))


def start_ranks(folder, resume):
    """Starts all ranks as fresh processes; returns rank 0's digests. No process survives this call."""
    # The store lives here, on a port the kernel picks: nobody else can take it first.
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    command = [sys.executable, os.path.abspath(__file__), "--worker", folder, "resume" if resume else "fresh"]
    shared = dict(os.environ, WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port),
                  TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0", OMP_NUM_THREADS="1")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen(command, env=dict(shared, RANK=str(rank)), **pipes) for rank in range(RANKS)]
    try:
        said = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    statuses = [rank.returncode for rank in ranks]
    if any(statuses):
        raise AssertionError(f"ranks ended with {statuses}\n" + "".join(errors for _, errors in said))
    return json.loads(said[0][0])


@unittest.skipIf(torch is None, "needs torch: apt install python3-torch")
class DdpBuckets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            cls.undisturbed = start_ranks(folder, resume=False)
            cls.resumed = start_ranks(folder, resume=True)

    def test_bare_restart_changes_bits(self):
        self.assertNotEqual(self.undisturbed["bare"], self.resumed["bare"])

    def test_two_discarded_iterations_keep_bits(self):
        self.assertEqual(self.undisturbed["warmed_up"], self.resumed["warmed_up"])

    def test_find_unused_parameters_keeps_bits(self):
        self.assertEqual(self.undisturbed["find_unused"], self.resumed["find_unused"])

    def test_views_are_left_as_the_steps_leave_them(self):
        for way in ("dropped_views", "kept_views"):
            self.assertEqual(self.undisturbed[way], self.resumed[way], way)
        self.assertNotEqual(self.undisturbed["views_dropped_at_first"], self.resumed["views_dropped_at_first"])

    def test_bare_run_begins_with_other_buckets(self):
        # The same values in the same order of steps: only the first step's sums are grouped otherwise.
        self.assertNotEqual(self.undisturbed["bare"], self.undisturbed["warmed_up"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], sys.argv[3] == "resume")
    else:
        unittest.main()
