"""`lockstep explain` against a second implementation (whatif_reference.py), above all where no published trace leads: interleaved pipelines,
one stage, one replica, overlapped data parallelism."""
import itertools
import json
import pathlib
import subprocess
import tempfile
import unittest

import whatif_reference
from harness import BINARY

FIGURES = ("slowdown", "launch_slowdown", "by_optype", "by_dp_rank", "by_stage")


def simulate(folder, seed, faults, **shape):
    """Trace and metadata of a job of three steps."""
    words = [word for name, size in shape.items() for word in ((f"--{name}",) if size is True else (f"--{name}", str(size)))]
    planted = [word for fault in faults for word in ("--fault", fault)]
    subprocess.run([BINARY, "simulate", "trace", folder, "--steps", "3", "--seed", str(seed), *words, *planted], check=True, capture_output=True)
    return str(next(pathlib.Path(folder).glob("*.csv*"))), str(next(pathlib.Path(folder).glob("*.yaml")))


class Reference(unittest.TestCase):
    def assert_equal(self, expected, found, what):
        if isinstance(expected, dict):
            self.assertEqual(expected.keys(), found.keys(), what)
            for key in expected:
                self.assert_equal(expected[key], found[key], f"{what} {key}")
        else:
            self.assertAlmostEqual(1, found / expected, delta=1e-9, msg=what)

    def compare(self, seed, faults=(), **shape):
        with self.subTest(faults=faults, **shape), tempfile.TemporaryDirectory() as folder:
            trace, meta = simulate(folder, seed, faults, **shape)
            answer = subprocess.run([BINARY, "explain", trace, "--meta", meta, "--json"], check=True, capture_output=True, text=True)
            found, expected = json.loads(answer.stdout), whatif_reference.WhatIf(whatif_reference.Trace(trace, meta)).analyse()
            for figure in FIGURES:
                self.assert_equal(expected[figure], found[figure], figure)
            workers = {f"{one['dp']},{one['stage']}": one["slowdown"] for one in found["by_worker"]}
            self.assert_equal(expected["by_worker"], workers, "by_worker")
            if found["m_w"] is not None:
                self.assertAlmostEqual(expected["m_w"], found["m_w"], delta=1e-9)
                self.assertAlmostEqual(expected["m_s"], found["m_s"], delta=1e-9)

    def test_interleaved_pipelines(self):
        for seed, (vpp, pp, dp) in enumerate(itertools.product((1, 2, 3), (2, 4), (1, 2))):
            self.compare(seed, ["worker:stage=1,factor=1.5"], vpp=vpp, pp=pp, dp=dp, microbatches=2 * pp)

    def test_other_shapes(self):
        self.compare(20, ["worker:factor=1.4"], pp=1, dp=4)
        self.compare(21, ["gc"], pp=1, dp=1)
        self.compare(22, ["stage:stage=2,factor=1.3", "gc"], pp=4, dp=2, overlapped=True)
        self.compare(23, ["link:stage=0"], pp=4, dp=2, vpp=2, microbatches=8, overlapped=True)
        self.compare(24, pp=2, dp=2)


if __name__ == "__main__":
    unittest.main()
