"""`lockstep diagnose` as a user runs it: on dumps in every form, whole, damaged and hostile."""
import json
import os
import pathlib
import pickle
import subprocess
import tempfile
import unittest

from harness import BINARY

DATA = pathlib.Path(os.environ.get("LOCKSTEP_DATA", pathlib.Path(__file__).resolve().parents[3] / "shared/data"))
RANKS = 4


def dump(rank, launched, ended, name="nccl:all_reduce"):
    """Of a rank whose only group holds all ranks."""
    entries = [{"record_id": i, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": i, "p2p_seq_id": 0,
                "profiling_name": name, "time_created_ns": 10**18 + i, "duration_ms": None, "input_sizes": [[8]], "input_dtypes": ["Float"],
                "state": "completed" if i <= ended else "started", "is_p2p": False} for i in range(1, launched + 1)]
    return {"version": "2.9", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(RANKS)))}},
            "pg_status": {"0": {"last_enqueued_collective": launched, "last_started_collective": -1, "last_completed_collective": ended}},
            "entries": entries}


def without(records, rank):
    """A file of records without those of this rank's trail: each is a multiple of 64 bytes, a snapshot (6) says whose the next ones are."""
    kept, at, is_kept = records[:64], 64, True
    while at < len(records):
        size = 64 * (1 + int.from_bytes(records[at + 2:at + 4], "little"))
        if records[at] == 6:
            is_kept = int.from_bytes(records[at + 24:at + 28], "little") != rank
        kept += records[at:at + size] if is_kept else b""
        at += size
    return kept


class Diagnose(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-diagnose-")))

    def write(self, stuck=2, ranks=range(RANKS), protocol=None):
        for rank in ranks:
            document = dump(rank, 9 if rank == stuck else 10, 9)
            path = self.folder / f"nccl_trace_rank_{rank}"
            path.write_bytes(json.dumps(document).encode() if protocol is None else pickle.dumps(document, protocol=protocol))

    def lockstep(self, *words, code=0):
        done = subprocess.run([BINARY, "diagnose", *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(code, done.returncode, done.stderr + done.stdout)
        return done.stderr if code else done.stdout

    def diagnose(self, *paths):
        return json.loads(self.lockstep(*(paths or [self.folder]), "--json"))

    def refused(self, *paths):
        error = self.lockstep(*paths, code=2)
        self.assertEqual(1, error.count("\n"), error)
        return error

    def assert_names(self, ranks, report, syndrome="non_communication_hang", certain=True):
        self.assertEqual([syndrome], [one["syndrome"] for one in report["verdicts"]], report)
        self.assertEqual(ranks, [suspect["rank"] for suspect in report["verdicts"][0]["suspects"]], report)
        self.assertEqual(certain, report["verdicts"][0]["certain"], report)

    def test_every_form_of_a_dump_gives_the_same_verdict(self):
        verdicts = set()
        for protocol in (None, 2, 3, 4, 5):
            with self.subTest(protocol=protocol):
                self.write(protocol=protocol)
                report = self.diagnose()
                self.assert_names([2], report)
                verdicts.add(json.dumps(report))
        self.assertEqual(1, len(verdicts), verdicts)
        self.assertIn("rank 2 has launched up to 9", self.lockstep(self.folder))
        files = sorted(self.folder.iterdir(), reverse=True)
        self.assertEqual(verdicts, {json.dumps(self.diagnose(*files))})

    def test_a_clean_bill(self):
        self.write(stuck=None)
        for rank in range(RANKS):
            (self.folder / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump(rank, 10, 10)))
        report = self.diagnose()
        self.assertEqual(([], True, []), (report["verdicts"], report["healthy"], report["no_report"]), report)

    def test_a_group_whose_ranks_are_not_told(self):
        """Version 1: one rank calls another collective than all others."""
        for rank in range(RANKS):
            entry = {"record_id": 0, "pg_id": 1, "seq_id": 7, "profiling_name": "nccl:_all_gather_base" if rank == 3 else "nccl:all_reduce",
                     "state": "started", "input_sizes": [[4]], "time_created_ns": 10**18}
            (self.folder / f"rank_{rank}").write_text(json.dumps({"version": "1.1", "entries": [entry]}))
        report = self.diagnose()
        self.assert_names([3], report, syndrome="mismatched", certain=False)
        self.assertIn("which ranks are in process group 1", report["verdicts"][0]["probe"])

    def test_ranks_without_a_dump(self):
        self.write(ranks=[0, 2, 3])
        report = self.diagnose()
        self.assertEqual([1], report["no_report"])
        self.assert_names([2], report, certain=False)
        self.assertEqual([{"rank": 1}], report["verdicts"][0]["ambiguous_with"], report)

    def test_a_damaged_dump_among_others(self):
        self.write()
        whole = (self.folder / "nccl_trace_rank_3").read_bytes()
        (self.folder / "nccl_trace_rank_3").write_bytes(whole[:len(whole) // 2])
        report = self.diagnose()
        self.assert_names([2], report, certain=False)
        self.assertEqual([3], report["no_report"])
        self.assertEqual(1, report["counters"]["damaged_files"])
        self.assertIn("nccl_trace_rank_3: byte ", report["damaged"][0])

    def test_refuses_what_would_run_code(self):
        for payload, name in ((b"\x80\x02cos\nsystem\n(X\x05\x00\x00\x00touchtR.", "GLOBAL os system"),
                              (pickle.dumps(print, protocol=4), "STACK_GLOBAL"), (pickle.dumps(pathlib.Path("x"), protocol=2), "GLOBAL pathlib")):
            path = self.folder / "rank_0"
            path.write_bytes(payload)
            error = self.refused(path)
            self.assertIn(name, error)
            self.assertIn("is refused", error)

    def test_bad_input(self):
        self.write()
        (self.folder / "other").mkdir()
        (self.folder / "other" / "notes.txt").write_text("nothing")
        (self.folder / "rank_2.json").write_text("{}")
        cases = {"No such file": [self.folder / "none_1"], "no dump of a Flight Recorder": [self.folder / "other"],
                 "rank 2 is in": [self.folder], "not JSON": [self.folder / "other" / "notes.txt"],
                 "no list \"entries\"": [self.folder / "rank_2.json"]}
        (self.folder / "other" / "rank_7").write_text("nothing")
        cases["not JSON"] = [self.folder / "other" / "rank_7"]
        (self.folder / "other" / "nothing").write_text("")
        cases["nothing: it is empty"] = [self.folder / "other" / "nothing"]
        for text, paths in cases.items():
            with self.subTest(text):
                self.assertIn(text, self.refused(*paths))

    def write_stacks(self, node, ranks, stuck=None):
        """As an agent keeps them, with a data worker each."""
        c10d = "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py:1541 in all_reduce"
        sections = []
        for rank in ranks:
            python = "/home/me/job.py:9 in load" if rank == stuck else c10d
            native = "read (libc.so.6)" if rank == stuck else "c10d::Work::wait (libtorch_cpu.so.1.13.0)"
            sections.append(f"rank {rank} (pid {100 + rank})\n Python\n  main thread\n    {python}\n    /home/me/job.py:{20 + rank} in main\n"
                            f" native\n  thread {100 + rank} python3 state S in futex\n    {native}\n\n"
                            f"rank {rank}, data_worker (pid {200 + rank})\n Python\n  not readable: no faulthandler is registered in the process\n"
                            f" native\n  thread {200 + rank} pt_data_worker state S in {'openat' if rank == stuck else 'read'}\n"
                            f"    {'openat' if rank == stuck else 'read'} (libc.so.6)\n\n")
        path = self.folder / f"{node}.txt"
        path.write_text(f"node {node}\n" + "".join(sections))
        return path

    def test_stacks_of_several_nodes(self):
        first, second = self.write_stacks("a", [0, 1]), self.write_stacks("b", [2, 3], stuck=2)
        report = self.diagnose(self.folder)
        self.assert_names([2], report, syndrome="not_entered", certain=False)
        stacks = report["stacks"]
        self.assertEqual(("outside", 8, ["b"]), (stacks["basis"], stacks["processes"], stacks["evict"]), report)
        self.assertEqual(["0-1, 3", "2"], [cluster["ranks"] for cluster in stacks["clusters"] if cluster["role"] == "trainer"], report)
        self.assertIn("data_worker of rank 2 alone at openat (libc.so.6)", report["verdicts"][0]["evidence"])
        self.assertEqual(report, self.diagnose(second, first))
        self.assertIn("job.py in load", self.lockstep(self.folder))
        missing = self.diagnose(first, "--layout", "tp2,dp2")
        self.assertEqual([2, 3], missing["no_report"], missing)
        self.assert_names([2, 3], missing, syndrome="not_entered", certain=False)

    def test_stacks_of_ranks_that_are_all_elsewhere(self):
        sections = [f"rank {rank} (pid {100 + rank})\n Python\n  main thread\n    /home/me/job.py:9 in at_{chr(97 + rank // 26)}{chr(97 + rank % 26)}\n"
                    f" native\n  thread {100 + rank} python3 state R\n    read (libc.so.6)\n\n" for rank in range(60)]
        path = self.folder / "stacks.txt"
        path.write_text("node a\n" + "".join(sections))
        self.assertEqual(60, len(self.diagnose(path)["stacks"]["clusters"]))
        text = self.lockstep(path)
        self.assertEqual(16, text.count("in_communication"), text)
        self.assertIn("44 smaller clusters with processes of 44 ranks; --json has all", text)

    def test_stacks_beside_dumps(self):
        stacks = self.write_stacks("a", range(RANKS), stuck=2)
        dumps = self.folder / "dumps"
        dumps.mkdir()
        for rank in range(RANKS):
            (dumps / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump(rank, 9 if rank == 2 else 10, 9)))
        report = self.diagnose(stacks, dumps)
        self.assertEqual("wait_for", report["stacks"]["basis"], report)
        self.assertEqual([{"rank": 2}], report["verdicts"][0]["suspects"], report)
        self.assertTrue(report["verdicts"][0]["certain"], report)
        self.assertEqual(1, report["stacks"]["confidence"], report)

    def test_bad_stacks(self):
        path = self.write_stacks("a", [0, 1])
        (self.folder / "torn").write_text(path.read_text() + "rank one (pid 1)\n")
        (self.folder / "notes").write_text("nothing")
        cases = {"torn:34: expected \"rank N (pid P)\"": [self.folder / "torn"], "rank 0 is in": [path, path],
                 "the layout has 1 ranks": [path, "--layout", "dp1"], "expected a size behind tp": [path, "--layout", "tp"],
                 "it is of use with stacks": [self.folder / "notes", "--layout", "tp2"]}
        for text, words in cases.items():
            with self.subTest(text):
                self.assertIn(text, self.refused(*words))

    def test_the_status_of_ras(self):
        def rank(number, count, status=None):
            return {"rank": number, "host": "10.0.0.1", "pid": 1000 + number, "cuda_dev": number, "status": status or {},
                    "collective_counts": {"AllReduce": count}}

        path = self.folder / "status.json"
        world = {"hash": "0xa", "size": 4, "ranks": [rank(i, 9 if i == 2 else 10) for i in range(4)]}
        path.write_text(json.dumps({"nccl_version": "2.28.7", "communicators": [world]}))
        report = self.diagnose(path)
        self.assert_names([2], report, certain=False)
        self.assertIn("rank 2 has launched up to 9", report["verdicts"][0]["evidence"][0])
        world["missing_ranks"] = [rank(3, 0, {"considered_dead": True})]
        world["ranks"] = [rank(i, 10) for i in range(3)]
        path.write_text(json.dumps({"communicators": [world]}))
        report = self.diagnose(path)
        self.assert_names([3], report, certain=False)
        self.assertIn("considered dead", " ".join(report["verdicts"][0]["evidence"]))
        del world["missing_ranks"]
        path.write_text(json.dumps({"communicators": [world]}))
        report = self.diagnose(path)
        self.assertEqual(([], None), (report["verdicts"], report["healthy"]))
        self.assertIn("launches alone", report["blind_spot"])
        path.write_text('{"communicators": []}')
        self.assertIn("no communicators", self.refused(path))

    @unittest.skipUnless((DATA / "diagnosis").is_dir(), f"{DATA}/diagnosis is not there")
    def simulate(self, *words, code=0):
        path = self.folder / "job.records"
        path.unlink(missing_ok=True)
        done = subprocess.run([BINARY, "simulate", "telemetry", path, "--json", *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(code, done.returncode, done.stderr + done.stdout)
        return path if code == 0 else done.stderr

    def test_simulated_telemetry(self):
        job = ("--ranks", 256, "--layout", "tp4,pp2", "--ports", 2)
        report = self.diagnose(self.simulate(*job))
        self.assertEqual(([], True, {}), (report["verdicts"], report["healthy"], report["counters"]), report)
        (slow,) = self.diagnose(self.simulate(*job, "--fault", "slow_rank:rank=77,factor=1.5", "--loss", 0.2))["verdicts"]
        self.assertEqual(("non_communication_slow", [{"rank": 77}]), (slow["syndrome"], slow["suspects"]))
        self.assertAlmostEqual(slow["price"]["share"] * 256 * 24, slow["price"]["gpu_hours_per_day"])
        path = self.simulate(*job, "--fault", "stopped:rank=200,from=20")
        self.assert_names([200], self.diagnose(path))
        path.write_bytes(path.read_bytes()[:-100])
        self.assertIn("torn_bytes", self.diagnose(path)["counters"])

    def test_what_was_lost_is_not_known_to_be_well(self):
        path = self.simulate("--ranks", 16, "--layout", "dp16", "--fault", "slow_rank:rank=3,factor=1.5")
        self.assert_names([3], self.diagnose(path), syndrome="non_communication_slow")
        path.write_bytes(path.read_bytes()[:30000])
        report = self.diagnose(path)
        self.assertEqual(([], None), (report["verdicts"], report["healthy"]), report)
        self.assertEqual(list(range(10, 16)), report["no_report"])
        self.assertIn("can't be read", report["blind_spot"])

    def test_ranks_that_no_job_has(self):
        """A group of a dump may list anything."""
        for ranks in ("[0, 1, 2, -5]", "[0, 1, 2, 2147483648]", "[0, 1, 2, 4294967298]", "[0, 1, 2, 18446744073709551615]"):
            with self.subTest(ranks):
                for rank in range(2):
                    document = dump(rank, 10, 9)
                    document["pg_config"]["0"]["ranks"] = ranks
                    (self.folder / f"nccl_trace_rank_{rank}").write_text(json.dumps(document))
                report = self.diagnose()
                self.assertEqual([2], report["no_report"], report)

    def test_a_neighbour_whose_trail_is_lost(self):
        """Of a rank that is known by no name nothing is said."""
        path = self.simulate("--layout", "tp1,pp2,dp2", "--fault", "stopped:rank=2")
        path.write_bytes(without(path.read_bytes(), rank=2))
        report = self.diagnose(path)
        self.assertEqual([2], report["no_report"])
        for verdict in report["verdicts"]:
            self.assertNotIn("rank -1", verdict["headline"])
            self.assertNotIn({"rank": -1}, verdict["suspects"] + verdict["ambiguous_with"], verdict)

    def test_paths_of_several_kinds(self):
        trails = self.simulate("--ranks", 4, "--layout", "dp4")
        self.write()
        (self.folder / "run").mkdir()
        (self.folder / "run" / "run.json").write_text("{}")
        for text, paths in {"nowhere: No such file": [trails, self.folder / "nowhere"], "rank_0: it has no trails": [self.folder / "nccl_trace_rank_0", trails],
                            "a run without trails": [self.folder / "run"]}.items():
            with self.subTest(text):
                self.assertIn(text, self.refused(*paths))

    def test_bad_simulated_telemetry(self):
        self.assertIn('layout "tp3" has 3 ranks, --ranks is 16', self.simulate("--ranks", 16, "--layout", "tp3", code=2))
        self.assertIn("rank is 99, expected 0 to 7", self.simulate("--fault", "slow_rank:rank=99", code=2))
        self.assertIn("expected one of slow_rank", self.simulate("--fault", "slow", code=2))

    def test_real_dumps(self):
        for folder in sorted((DATA / "diagnosis/fr_dumps_nvrx").iterdir()):
            with self.subTest(folder.name):
                gold = [int(line.split()[1].rstrip(",")) for line in (folder / "fault_injection.log").read_text().splitlines() if line.startswith("Rank ")]
                report = self.diagnose(folder)
                self.assertEqual(gold, sorted(suspect["rank"] for verdict in report["verdicts"] for suspect in verdict["suspects"]), report)
                self.assertEqual([], report["no_report"])


if __name__ == "__main__":
    unittest.main()
