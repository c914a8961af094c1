"""The NCCL plugin in real NCCL: some ranks on one device, one of them slow, stopped or killed, and `lockstep diagnose` on what the plugin wrote.

`./dev gpu-test` runs it; without a device it says so in one line and asks for nothing. Last it prints what watching cost.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "e2e"), str(pathlib.Path(__file__).resolve().parents[2] / "bench")]
import stats  # noqa: E402
from harness import BINARY  # noqa: E402
from nccl_rank import Driver, Nccl, Unusable  # noqa: E402

RANK = pathlib.Path(__file__).with_name("nccl_rank.py")
# By its name, which all versions of NCCL take, as `lockstep run --nccl-profiler` does.
PLUGIN = pathlib.Path(BINARY).resolve().parents[1] / "lib/lockstep/nccl/liblockstep-nccl-profiler.so"
LOADS_PLUGIN = {"NCCL_PROFILER_PLUGIN": PLUGIN.name,
                "LD_LIBRARY_PATH": ":".join(filter(None, (str(PLUGIN.parent), os.environ.get("LD_LIBRARY_PATH"))))}
RANKS = 3
CULPRIT = 1
OVER_SOCKETS = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0"}
ENDS_WITHIN_S = 120
WARM_UP = 5  # all-reduces that connect


class Job:
    """The ranks, as processes; those of the test's end are killed and waited for."""

    def __init__(self, test, trails=None, culprit=(), **words):
        self.folder = pathlib.Path(test.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-gpu-")))
        self.processes = []
        test.addCleanup(self.end)
        everybody = [word for name, value in words.items() for word in (f"--{name}", str(value))]
        for rank in range(RANKS):
            watched = {"LOCKSTEP_TRAILS": str(trails), **LOADS_PLUGIN} if trails else {}
            env = {**os.environ, **OVER_SOCKETS, "NCCL_HOSTID": f"host{rank}", "RANK": str(rank), "WORLD_SIZE": str(RANKS), **watched}
            command = [sys.executable, str(RANK), str(rank), str(RANKS), str(self.folder / "id"), *everybody, *(culprit if rank == CULPRIT else ())]
            self.processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=(self.folder / f"rank{rank}").open("w"), text=True))

    def end(self):
        for process in self.processes:
            process.kill()
            process.communicate()

    def took(self):
        """For each rank the seconds of its all-reduces, once it has ended well."""
        answers = [process.communicate(timeout=ENDS_WITHIN_S)[0] for process in self.processes]
        if any(process.returncode for process in self.processes):
            raise AssertionError(self.words())
        return [json.loads(answer)[WARM_UP:] for answer in answers]

    def words(self):
        return "\n".join((self.folder / f"rank{rank}").read_text() for rank in range(RANKS))


class RealNccl(unittest.TestCase):
    def setUp(self):
        self.trails = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-gpu-")))

    def diagnose(self):
        answer = subprocess.run([BINARY, "diagnose", str(self.trails), "--json"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(0, answer.returncode, answer.stderr)
        return json.loads(answer.stdout)

    def verdict(self, job):
        """Of a job that hangs: the first report with one."""
        until = time.monotonic() + ENDS_WITHIN_S
        while time.monotonic() < until:
            if len(list(self.trails.iterdir())) == RANKS and (report := self.diagnose())["verdicts"]:
                return report
            time.sleep(0.5)
        self.fail(f"no verdict\n{self.diagnose() if any(self.trails.iterdir()) else 'no trail'}\n{job.words()}")

    def assert_names_culprit(self, report, *syndromes):
        self.assertIn(report["verdicts"][0]["syndrome"], syndromes, report)
        self.assertEqual([{"rank": CULPRIT}], report["verdicts"][0]["suspects"], report)
        wrong = [one for one in report["verdicts"] if one["certain"] and one["suspects"] != [{"rank": CULPRIT}]]
        self.assertEqual([], wrong, report)

    def test_a_healthy_job(self):
        Job(self, self.trails).took()
        self.assertEqual(RANKS, len(list(self.trails.iterdir())), "each rank writes a trail")
        report = self.diagnose()
        self.assertEqual(([], []), (report["verdicts"], report["no_report"]), report)

    def test_a_slow_rank(self):
        Job(self, self.trails, culprit=["--alone", "0.1"]).took()
        self.assert_names_culprit(self.diagnose(), "non_communication_slow")

    def test_a_stopped_rank(self):
        report = self.verdict(Job(self, self.trails, culprit=["--stop-at", "20"]))
        self.assert_names_culprit(report, "non_communication_hang", "communication_hang")

    def test_a_killed_rank(self):
        report = self.verdict(Job(self, self.trails, culprit=["--kill-at", "20"]))
        self.assert_names_culprit(report, "non_communication_hang", "communication_hang")

    def test_what_watching_costs(self):
        """By turns with and without the plugin; a report, since the noise of a shared device is not ours to judge."""
        for floats, ops in ((16, 400), (1 << 20, 100)):
            ratios, plain = [], []
            for turn in range(10):
                medians = {}
                for watched in (True, False) if turn % 2 else (False, True):
                    took = Job(self, self.trails if watched else None, ops=ops, floats=floats, alone=0).took()
                    medians[watched] = statistics.median(one for rank in took for one in rank)
                ratios.append(100 * (medians[True] / medians[False] - 1))
                plain.append(1e6 * medians[False])
            low, high = stats.median_interval(ratios)
            print(f"all-reduce of {4 * floats} bytes, {RANKS} ranks on one device: {statistics.median(plain):.0f} us unwatched; watched "
                  f"{statistics.median(ratios):+.2f} % ({low:+.2f} to {high:+.2f}, {len(ratios)} pairs of jobs)", file=sys.stderr)


def main():
    try:
        Driver()
    except Unusable as error:
        print(f"gpu-test: skipped, {error}")
        return
    try:
        print(f"gpu-test: NCCL {Nccl().version()}, {RANKS} ranks on one device", file=sys.stderr)
    except Unusable as error:
        sys.exit(f"gpu-test: {error}")
    unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
