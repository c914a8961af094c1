"""`lockstep explain` and `lockstep simulate` as a user runs them: what they answer, what they write, what they refuse."""
import contextlib
import gzip
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import tarfile
import tempfile
import unittest

from harness import BINARY, undocumented

DATA = pathlib.Path(os.environ.get("LOCKSTEP_DATA", pathlib.Path(__file__).resolve().parents[3] / "shared/data"))

BY_NAME = {"by_optype", "by_stage", "by_dp_rank", "late_launches", "counters"}  # of a report: below them keys are names


class Explain(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-explain-")))

    def lockstep(self, *words, code=0, **env):
        done = subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, timeout=120, cwd=self.folder,
                              env={**os.environ, **env}, check=False)
        self.assertEqual(code, done.returncode, done.stderr + done.stdout)
        return done.stderr if code else done.stdout

    def refused(self, *words, **env):
        error = self.lockstep(*words, code=2, **env)
        self.assertEqual(1, error.count("\n"), error)
        return error

    def explain(self, *words):
        report = json.loads(self.lockstep("explain", *words, "--json"))
        self.assertEqual(set(), undocumented(report, "explain.md", BY_NAME))
        return report

    def simulate(self, *words, kind="trace", folder="job"):
        self.lockstep("simulate", kind, folder, *words)
        return self.folder / folder

    def named(self, report):
        return [(cause["cause"], [suspect.get("rank") for suspect in cause["suspects"]]) for cause in report["causes"]]

    def test_telemetry_that_can_t_be_written_is_not_in_the_way(self):
        small = f"trap '' XFSZ; ulimit -f 8; exec {BINARY} simulate telemetry x.records --ranks 8 --seconds 60"
        done = subprocess.run(["bash", "-c", small], capture_output=True, text=True, timeout=60, cwd=self.folder, check=False)
        self.assertEqual(2, done.returncode, done)
        self.assertFalse((self.folder / "x.records").exists(), done)

    def test_a_pipelined_job(self):
        job = self.simulate("--dp", 4, "--pp", 2, "--steps", 8, "--fault", "worker:dp=3,stage=1,factor=1.5")
        report = self.explain(job / "trace.csv.gz", "--meta", job / "meta.yaml", "--out", "why", "--compat", "published")
        self.assertEqual([("worker", [7])], self.named(report))
        self.assertEqual({"dp": 3, "stage": 1, "rank": 7}, {key: report["by_worker"][0][key] for key in ("dp", "stage", "rank")})
        self.assertEqual("straggles", report["verdict"])
        self.assertEqual(report, json.loads((self.folder / "why/report.json").read_text()))
        self.assertEqual({"result-synthetic.json", "ms-synthetic.json", "mw-synthetic.json"}, set(os.listdir(self.folder / "published")))
        for kind in ("original", "ideal", "difference"):
            with gzip.open(self.folder / f"why/timeline-{kind}.json.gz") as file:
                slices = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
            self.assertTrue(slices, kind)
            ends = {}
            for one in sorted(slices, key=lambda one: (one["pid"], one["tid"], one["ts"])):
                track = one["pid"], one["tid"]
                self.assertGreaterEqual(one["ts"], ends.get(track, 0) - 1e-2, (kind, one))  # else Perfetto drops it
                ends[track] = one["ts"] + one["dur"]
        self.assertIn("worker", (self.folder / "why/index.html").read_text())
        self.assertEqual(3, self.explain(job / "trace.csv.gz", "--meta", job / "meta.yaml", "--steps", "2-3", "--steps", "6")["steps"])
        self.assertEqual(report, self.explain(job / "trace.csv.gz", "--meta", job / "meta.yaml", "--threads", 1))

    def test_a_slow_fabric_and_a_collective_of_one_rank(self):
        """What one rank alone has says nothing about the network."""
        job = self.simulate("--ranks", 8, "--steps", 12, "--fault", "fabric:factor=6,steps=5-9", kind="kineto")
        path = job / "rank-0.json.gz"
        trace = json.loads(gzip.decompress(path.read_bytes()))
        events = trace["traceEvents"]
        collective = next(event for event in events if "nccl" in event["name"])
        for number, step in enumerate([event for event in events if event["name"].startswith("ProfilerStep")], 900_000):
            first = min((event for event in events if event.get("cat") == "kernel" and event["ts"] >= step["ts"]), key=lambda event: event["ts"])
            events.append({**collective, "ts": first["ts"] + 1, "dur": 5.0, "tid": 33,
                           "args": {**collective["args"], "External id": number, "stream": 33, "correlation": number, "Collective name": "broadcast", "In msg nelems": 1,
                                    "Out msg nelems": 1, "Group size": 1, "Process Group Name": "77", "Process Group Description": "log", "Process Group Ranks": "[0]"}})
            events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4000, "tid": 4000, "ts": first["ts"] - 50, "dur": 2.0,
                           "args": {"cbid": 211, "correlation": number}})
        path.write_bytes(gzip.compress(json.dumps(trace).encode()))
        report = self.explain("--kineto", *sorted(job.glob("rank-*.json.gz")))
        self.assertEqual(["fabric"], [cause["cause"] for cause in report["causes"]])
        self.assertEqual(1, report["counters"]["ranks_without_peers"])
        self.assertIn("but for 1 ranks with no other to compare them with", report["verdict"])

    def test_a_job_from_profiler_files(self):
        job = self.simulate("--ranks", 4, "--steps", 6, "--fault", "worker:dp=2,factor=1.4", "--clock-offset", 0.02, kind="kineto")
        files = sorted(job.glob("rank-*.json.gz"))
        report = self.explain("--kineto", *files, "--out", "why")
        self.assertEqual([("worker", [2])], self.named(report))
        self.assertEqual({"given": 4, "of": 4, "absent": []}, report["ranks"])
        self.assertIn("rank-2.json.gz is of a job of more than 2 ranks", self.refused("simulate", "kineto", "job", "--ranks", 2))
        self.assertTrue((self.folder / "why/timeline-ideal.json.gz").exists())
        self.assertEqual([1, 3], self.explain("--kineto", files[0], files[2])["ranks"]["absent"])
        others = self.explain("--kineto", files[0], files[1])  # who waited, but not for whom
        self.assertEqual([], others["causes"])
        self.assertEqual([2, 3], others["unsettled"]["ask_ranks"])
        self.assertEqual("healthy, as far as these ranks tell", others["verdict"])
        self.assertGreater(others["unsettled"]["at_most_s"], report["step_s"]["measured"] - report["step_s"]["ideal"])
        transient = self.simulate("--ranks", 5, "--fault", "transient_worker:dp=3,factor=1.8,steps=3-6", kind="kineto")
        for cause in self.explain("--kineto", transient / "rank-1.json.gz")["causes"]:
            self.assertEqual("fabric_or_late_rank", cause["cause"])
            self.assertIn("may have come late", cause["evidence"][-1])
        text = gzip.decompress(files[3].read_bytes())
        (self.folder / "rank-3.json").write_bytes(text[:len(text) // 2])
        self.assertEqual(1, self.explain("--kineto", *files[:3], "rank-3.json")["counters"]["damaged_events"])

    def nsys_file(self, profile, path, early_s=0):
        """What the PyTorch profiler wrote as Nsight Systems exports it: tables, columns and units are its own. `early_s`: how long its session had run."""
        events = json.loads(gzip.decompress(profile.read_bytes()))["traceEvents"]
        first = min(event["ts"] for event in events if event["ph"] == "X") - early_s * 1e6
        ns = lambda micros, since=0: round((micros - since) * 1000)
        process, names = 4711 << 24, {}
        path.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.executescript(f"""
                CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
                CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
                CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER,
                    correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
                CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
                CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
                INSERT INTO TARGET_INFO_SESSION_START_TIME (utcEpochNs) VALUES ({1700000000000000000 - early_s * 10**9});
            """)
            for event in events:
                if event["ph"] != "X":
                    continue
                begin = ns(event["ts"], first - 1000)
                end = begin + ns(event["dur"])
                correlation = event.get("args", {}).get("correlation")
                if event["cat"] == "kernel":
                    name = names.setdefault(event["name"], len(names))
                    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?)",
                                     (begin, end, event["pid"], event["tid"], correlation, process, name, name))
                elif event["cat"] == "cuda_runtime":
                    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 0)", (begin, end, process + 7, correlation))
                elif event["name"].startswith("ProfilerStep#"):
                    number = event["name"].split("#")[1]
                    database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, NULL)", (begin, end, f"step {number}", process + 7))
            database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, name) for name, number in names.items()])
        return path

    def test_a_job_from_nsight_systems(self):
        job = self.simulate("--ranks", 4, "--steps", 6, "--fault", "worker:dp=2,factor=1.4", "--era", "micros", kind="kineto")
        profiles = sorted(job.glob("rank-*.json.gz"))
        files = [self.nsys_file(profile, self.folder / f"rank-{rank}.sqlite") for rank, profile in enumerate(profiles)]
        report, same = self.explain("--nsys", *files), self.explain("--kineto", *profiles)
        self.assertEqual([("worker", [2])], self.named(report))
        self.assertEqual(same["step_s"], report["step_s"])
        self.assertEqual(6, report["steps"])
        self.nsys_file(profiles[1], files[1], early_s=700)
        early = self.explain("--nsys", *files)
        self.assertEqual([report["step_s"], report["clocks"]], [early["step_s"], early["clocks"]])
        self.assertEqual([2, 0], [self.explain(self.folder)[key] for key in ("jobs", "damaged")])  # these, and the profiles below
        with contextlib.closing(sqlite3.connect(files[1])) as database, database:
            database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = globalPid * 2 WHERE rowid = 5")
        self.assertIn("rank-1.sqlite: the work of 2 processes", self.refused("explain", "--nsys", *files))
        (self.folder / "rank-9.sqlite").write_bytes(files[0].read_bytes()[:5000])
        self.assertIn("rank-9.sqlite: database disk image is malformed", self.refused("explain", "--nsys", "rank-9.sqlite"))
        with contextlib.closing(sqlite3.connect(self.folder / "rank-8.sqlite")) as database, database:
            database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        self.assertIn("rank-8.sqlite: no kernels; expected the export of", self.refused("explain", "--nsys", "rank-8.sqlite"))

    def test_graphs_and_microbatches_in_nsight_systems(self):
        """Compute in CUDA graphs, and ranges of microbatches within those of the steps."""
        job = self.simulate("--ranks", 2, "--steps", 6, "--era", "micros", kind="kineto")
        files = [self.nsys_file(job / f"rank-{rank}.json.gz", self.folder / f"rank-{rank}.sqlite") for rank in range(2)]
        same = self.explain("--nsys", *files)
        for file in files:
            with contextlib.closing(sqlite3.connect(file)) as database, database:
                compute = "FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE shortName IN (SELECT id FROM StringIds WHERE value NOT LIKE '%nccl%')"
                database.executescript(f"""
                    CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS SELECT start, end, deviceId, streamId, correlationId, globalPid {compute};
                    DELETE {compute};
                    INSERT INTO NVTX_EVENTS SELECT start, (start + end) / 2, 59, 'batch 0', globalTid, NULL FROM NVTX_EVENTS;
                    INSERT INTO NVTX_EVENTS SELECT end, 2 * end - start, 59, 'batch 1', globalTid, NULL FROM NVTX_EVENTS WHERE text = 'batch 0';
                """)
        graphs = self.explain("--nsys", *files)
        self.assertEqual([same["step_s"], 6, {}], [graphs["step_s"], graphs["steps"], graphs["counters"]])
        with contextlib.closing(sqlite3.connect(files[0])) as database, database:
            database.execute("UPDATE NVTX_EVENTS SET text = 'step 1' WHERE text IN ('step 1', 'step 2')")
        self.assertEqual(1, self.explain("--nsys", files[0])["counters"]["steps_of_the_same_number"])

    def chakra_file(self, rank, slow):
        """An execution trace of forward, all-reduce beside backward, update: as protobuf has it."""
        number = lambda value: bytes([value & 127 | 128]) + number(value >> 7) if value > 127 else bytes([value])
        field = lambda key, value: (number(key << 3) + number(value) if isinstance(value, int) else
                                    number(key << 3 | 2) + number(len(value)) + value)
        attribute = lambda name, key, value: field(10, field(1, name) + field(key, value))
        message = lambda text: number(len(text)) + text
        node = lambda id, name, kind, deps, micros, *attributes: message(
            field(1, id) + field(2, name) + field(3, kind) + field(5, b"".join(map(number, deps))) + field(7, micros) + b"".join(attributes))
        reduce = attribute(b"comm_type", 9, 0), attribute(b"pg_name", 29, b"dp"), attribute(b"is_cpu_op", 27, 0)
        path = self.folder / f"job.{rank}.et"
        path.write_bytes(message(field(1, b"0.0.4")) + node(700, b"forward", 4, [3], 1000 * slow) + node(5, b"backward", 4, [700], 2000 * slow) +
                         node(9, b"all_reduce", 7, [700], 500 + (2 - slow) * 1500, *reduce) + node(10, b"update", 4, [5, 9], 300))
        return path

    def test_a_job_from_execution_traces(self):
        files = [self.chakra_file(rank, 2 if rank == 1 else 1) for rank in range(4)]
        report = self.explain("--chakra", *files)
        self.assertEqual([("worker", [1])], self.named(report))
        self.assertAlmostEqual(0.0063, report["step_s"]["measured"])
        self.assertAlmostEqual(0.003, report["causes"][0]["gain_s"])
        self.assertEqual({"missing_dependencies": 1}, report["counters"])
        outer = self.explain("--chakra", files[0], files[3])
        self.assertEqual([2, "healthy, as far as these ranks tell"], [outer["counters"]["absent_ranks"], outer["verdict"]])
        self.assertEqual(1, self.explain(self.folder)["straggling"]["jobs"])
        whole = files[2].read_bytes()
        files[2].write_bytes(whole[:-3])
        self.assertIn('job.2.et: node 3 ("update") can\'t be read', self.refused("explain", "--chakra", *files))
        files[2].write_bytes(b"\x07not one")
        self.assertIn("job.2.et: no Chakra execution trace", self.refused("explain", "--chakra", *files))
        self.assertIn("are both of rank 0", self.refused("explain", "--chakra", files[0], files[0]))
        files[2].write_bytes(whole + b"\x0a\x08\x0b\x12\x02up\x18\x04\x38\x01")  # a node more: 11, "up", compute, 1 us
        report = self.explain("--chakra", *files)
        self.assertEqual(1, report["counters"]["ranks_without_peers"])
        self.assertIn(", but for 1 ranks with no other to compare them with", report["verdict"])

    @unittest.skipUnless((DATA / "kineto/chakra").exists(), f"no execution trace in {DATA}")
    def test_a_real_execution_trace(self):
        with tarfile.open(DATA / "kineto/chakra/feeder_tests_trace.tar.gz") as archive:
            (self.folder / "real.0.et").write_bytes(archive.extractfile("tests/data/chakra.0.et").read())
        report = self.explain("--chakra", "real.0.et")
        self.assertEqual({"allreduce", "broadcast", "compute"}, set(report["by_optype"]))
        self.assertGreater(report["step_s"]["measured"], 0)

    def test_text_and_json_say_the_same(self):
        job = self.simulate("--steps", 4)
        text = self.lockstep("explain", job / "trace.csv.gz", "--meta", job / "meta.yaml")
        self.assertIn("healthy", text)
        self.assertEqual([], self.explain(job / "trace.csv.gz", "--meta", job / "meta.yaml")["causes"])

    def fleet(self):
        """Six jobs on the hosts a and b, half of them with a slow worker on b; and one that is damaged."""
        for number in range(6):
            fault = ["--fault", "worker:dp=1,stage=0,factor=1.5"] if number % 2 else []
            job = self.simulate("--dp", 2, "--pp", 1, "--tp", 4, "--steps", 4, "--seed", number, *fault, folder=f"fleet/{number}")
            with open(job / "meta.yaml", "a") as meta:
                meta.write(f"hosts: [a, b]\nday: 2026-11-0{1 + number // 4}\n")
        profiled = self.simulate("--ranks", 2, "--steps", 3, kind="kineto", folder="fleet/profiled")
        (profiled / "rank-1.json.gz").write_bytes(b"none")
        return self.folder / "fleet"

    def test_a_fleet(self):
        fleet = self.fleet()
        report = self.explain(fleet, "--out", "why")
        self.assertEqual((7, 1, 3), (report["jobs"], report["damaged"], report["straggling"]["jobs"]))
        self.assertEqual([("b", 3, 6)], [(node["node"], node["named_in"], node["of_jobs"]) for node in report["nodes"]])
        self.assertEqual(["2026-11-01", "2026-11-02"], [day["day"] for day in report["by_day"]])
        self.assertEqual(("worker", 3), (report["by_cause"][0]["cause"], report["by_cause"][0]["jobs"]))
        self.assertAlmostEqual(1, sum(cause["share"] for cause in report["by_cause"]))
        self.assertIn("3 of 7 jobs straggle", (self.folder / "why/index.html").read_text())
        self.assertEqual(report, json.loads((self.folder / "why/fleet.json").read_text()))
        self.assertIn("rank-1.json.gz", self.lockstep("explain", fleet))  # the damaged one is named in the text too

    def test_shards_of_a_fleet(self):
        fleet = self.fleet()
        alone = self.lockstep("explain", fleet, "--json")
        first = subprocess.run([BINARY, "explain", fleet, "--shard", "0/2", "--out", "why"], cwd=self.folder, capture_output=True, text=True, check=True)
        self.assertEqual(("", "lockstep: shard 0/2: 4 jobs done; shards [1] are still at work\n"), (first.stdout, first.stderr))
        joined = self.lockstep("explain", fleet, "--shard", "auto", "--out", "why", "--json", SLURM_PROCID="1", SLURM_NTASKS="2")
        self.assertEqual(alone, joined)
        self.assertEqual(alone, (self.folder / "why/fleet.json").read_text())

    def test_a_killed_fleet_goes_on(self):
        fleet = self.fleet()
        alone = self.lockstep("explain", fleet, "--json")
        lines = self.folder / "why/jobs-0-of-1.jsonl"
        process = subprocess.Popen([BINARY, "explain", fleet, "--out", "why", "--threads", "1"], cwd=self.folder, stdout=subprocess.DEVNULL)
        while process.poll() is None and not (lines.exists() and lines.read_text().count("\n") > 2):
            pass
        process.kill()
        process.wait()
        self.assertEqual(alone, self.lockstep("explain", fleet, "--out", "why", "--json"))

    def test_watch(self):
        job = self.simulate("--dp", 4, "--pp", 2, "--steps", 6, "--fault", "transient_worker:dp=3,stage=1,factor=2,steps=3-5")
        header, *rows = gzip.decompress((job / "trace.csv.gz").read_bytes()).decode().splitlines(keepends=True)
        growing = job / "growing.csv"
        growing.write_text(header)
        process = subprocess.Popen([BINARY, "explain", "--watch", growing, "--meta", job / "meta.yaml", "--window", "1", "--json"],
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        reports = []
        for step in range(6):
            with open(growing, "a") as file:
                file.writelines(row for row in rows if row.split(",")[3] == str(step))
            if step > 0:  # a step is complete once all have gone on
                reports.append(json.loads(process.stdout.readline()))
        self.assertEqual([0, 1, 2, 3, 4], [report["step"] for report in reports])
        self.assertEqual([[]] * 3 + [[("worker", [7])]] * 2, [self.named(report) for report in reports])
        process.send_signal(signal.SIGINT)
        self.assertEqual(0, process.wait(60))

    def test_watch_goes_on_after_a_step_that_lacks_a_row(self):
        job = self.simulate("--dp", 1, "--pp", 2, "--steps", 5)
        header, *rows = gzip.decompress((job / "trace.csv.gz").read_bytes()).decode().splitlines(keepends=True)
        rows.remove(next(row for row in rows if row.split(",")[3:5] == ["1", "forward-compute"]))
        (job / "t.csv").write_text("".join([header, *sorted(rows, key=lambda row: int(row.split(",")[3]))]))
        process = subprocess.Popen([BINARY, "explain", "--watch", job / "t.csv", "--meta", job / "meta.yaml", "--window", "1", "--json"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual([0, 2, 3], [json.loads(process.stdout.readline())["step"] for _ in range(3)])
        self.assertRegex(process.stderr.readline(), "^lockstep: step 1: .*forward")

    def test_bad_input(self):
        job = self.simulate("--steps", 2)
        trace, meta = job / "trace.csv.gz", job / "meta.yaml"
        ranks = self.simulate("--ranks", 2, "--steps", 2, kind="kineto")
        (self.folder / "empty").mkdir()
        (self.folder / "cut.csv.gz").write_bytes(trace.read_bytes()[:2000])
        (self.folder / "fake.parquet").write_bytes(b"PAR1" + bytes(100))
        (self.folder / "nameless.json").write_bytes(gzip.decompress((ranks / "rank-0.json.gz").read_bytes()).replace(b'"rank": 0, ', b""))
        for expected, words in {
            "the directory of a run, directories of traces, --kineto": [],
            "--meta: expected the YAML file beside cut.csv.gz": ["cut.csv.gz"],
            "/nowhere.csv: no such file or directory": ["/nowhere.csv"],
            "job: a directory; expected the profiler's files": ["--kineto", ranks],
            "none of the steps of --steps is one that all": ["--kineto", *sorted(ranks.glob("rank-*.json.gz")), "--steps", "99999"],
            "/nowhere.yaml: No such file": [trace, "--meta", "/nowhere.yaml"],
            "the file ends too early": ["cut.csv.gz", "--meta", meta],
            "fake.parquet: ": ["fake.parquet", "--meta", meta],
            "--steps 5-2: expected a step, or a range": [trace, "--meta", meta, "--steps", "5-2"],
            "no rows, or none of the steps asked for (--steps)": [trace, "--meta", meta, "--steps", "77"],
            "no JSON: expected a Chrome trace": ["--kineto", trace],
            "are both of rank 1": ["--kineto", ranks / "rank-1.json.gz", ranks / "rank-1.json.gz"],
            "neither distributedInfo nor the file's name tells the rank": ["--kineto", "nameless.json"],
            "--rank names the rank of one file, found 2": ["--kineto", trace, meta, "--rank", 1],
            "belong to a TRACE of the straggler schema": ["--kineto", trace, "--meta", meta],
            "a gzip file can't be followed": ["--watch", trace, "--meta", meta],
            "--watch: expected one TRACE": ["--watch", "--kineto", trace],
            "expected one TRACE, or directories only": [trace, job, "--meta", meta],
            "empty: no traces; expected trace-X.parquet": ["empty"],
            "--meta, --compat, --steps, --rank, --kineto, --chakra and --whole-timelines belong to one job": [job, "--meta", meta],
            "--shard 2/2: expected I/N": [job, "--shard", "2/2", "--out", "why"],
            "the shards join in a directory": [job, "--shard", "0/2"],
            "--shard auto: SLURM_PROCID and SLURM_NTASKS are not set": [job, "--shard", "auto", "--out", "why"],
            "--shard belongs to directories": [trace, "--meta", meta, "--shard", "0/1"],
        }.items():
            self.assertIn(expected, self.refused("explain", *words), words)
        self.assertEqual(0, self.explain("--kineto", "nameless.json", "--rank", 0)["ranks"]["absent"][0] - 1)
        self.assertIn("Parquet needs DuckDB's C library", self.refused("explain", "fake.parquet", "--meta", meta, LOCKSTEP_DUCKDB="/nowhere.so"))
        self.assertIn('fault "slow": expected one of worker', self.refused("simulate", "trace", "x", "--fault", "slow"))
        self.assertIn("dp must be 1 to 65536, found 0", self.refused("simulate", "trace", "x", "--dp", 0))
        self.assertIn("has no stages", self.refused("simulate", "kineto", "x", "--fault", "stage"))


if __name__ == "__main__":
    unittest.main()
