"""`lockstep report` and `lockstep standbys` as a user runs them, over journals written by hand from docs/formats/journal.md."""
import json
import pathlib
import sqlite3
import subprocess
import tempfile
import unittest

from harness import BINARY, undocumented

SECOND = 10**9
DAY = 86400
EPOCH_2026 = 1_767_225_600


class Journal:
    """The events of one run; its clock began a thousand seconds before."""

    def __init__(self, directory, begin, ranks=2, nodes=(), standbys=0):
        self.directory, self.offset, self.rows, self.epoch = pathlib.Path(directory), begin - 1000, [], 1
        places = [{"name": name, "ranks": ranks // len(nodes), "token": name} for name in nodes]
        spec = {"name": self.directory.name, "ranks": ranks, "nodes": places, "max_restarts": 1000, "no_progress_limit": 3, "observe_only": False,
                "grace_s": 30.0, "standbys": standbys}
        self.add(1000, "job_started", spec)

    def add(self, at, kind, fields):
        if kind not in ("job_started", "stop_asked", "agent_gone", "standby_came"):
            fields = {"epoch": self.epoch, **fields}
        self.rows.append((int(at * SECOND), int((at + self.offset) * SECOND), kind, json.dumps(fields)))

    def come_up(self, at, restored=None):
        self.add(at, "epoch_spawned", {})
        self.add(at, "loop_began", {"begin_ns": int(at * SECOND), "restored": restored})

    def see(self, step, at):
        self.add(at, "progress_seen", {"progress": {"step": step, "step_end_ns": int(at * SECOND)}})

    def kill(self, rank, at):
        none = {"step": -1, "step_end_ns": 0}
        self.add(at, "rank_exited", {"rank": rank, "code": 0, "signal": 9, "exception": None, "progress": none, "exited_ns": int(at * SECOND)})

    def restart(self, at, step):
        """Takes two seconds, one of them until the processes are gone."""
        self.add(at + 1, "epoch_stopped", {})
        point = {"epoch": self.epoch, "step": step}
        self.epoch += 1
        self.add(at + 1, "restore_chosen", {"point": point, "rejected": []})
        self.come_up(at + 2, point)

    def write(self):
        self.directory.mkdir(parents=True)
        base = sqlite3.connect(self.directory / "journal.sqlite")
        base.executescript("PRAGMA application_id = 0x4C534A31; PRAGMA user_version = 1;"
                           "CREATE TABLE wal (turns INTEGER NOT NULL); INSERT INTO wal VALUES (0);"
                           "CREATE TABLE event (sequence INTEGER PRIMARY KEY, at_ns INTEGER NOT NULL, wall_ns INTEGER NOT NULL,"
                           "                    type TEXT NOT NULL, payload TEXT NOT NULL);")
        base.executemany("INSERT INTO event (at_ns, wall_ns, type, payload) VALUES (?, ?, ?, ?)", self.rows)
        base.commit()
        base.close()


def one_run(directory, begin, crashes=(), nodes=("a", "b"), until=5000):
    """Trains from 1010 on; `crashes` are (time, rank). Nothing is computed twice: the newest step ends as the rank dies."""
    run = Journal(directory, begin, nodes=nodes)
    run.come_up(1010)
    step = 0
    for at, rank in crashes:
        step += 10
        run.see(step, at)
        run.kill(rank, at)
        run.restart(at, step)
    run.see(step + 10, until)
    run.write()


class Report(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def lockstep(self, *words, code=0):
        done = subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(code, done.returncode, done.stderr + done.stdout)
        return done.stderr if code else done.stdout

    def report(self, *words):
        return json.loads(self.lockstep("report", self.root, "--json", *words))

    def test_two_runs(self):
        one_run(self.root / "x" / "first", EPOCH_2026, [(2000, 1), (3000, 1)])
        one_run(self.root / "second", EPOCH_2026 + DAY)
        report = self.report()
        self.assertEqual({"read": 2, "completed": 0, "failed": 0, "stopped": 0, "unfinished": 2, "without_journal": 0, "unread": 0}, report["runs"])
        self.assertAlmostEqual((3990 - 4 + 3990) / 8000, report["ettr"]["cumulative"], 9)
        self.assertAlmostEqual(1, report["ettr"]["sliding_1h"], 9)
        self.assertEqual([{"class": "explicit", "symptom": "crash", "count": 2, "share": 1.0}], report["incidents"])
        self.assertEqual(("restart", 2, 2.0), tuple(report["resolution"][0][key] for key in ("resolved_by", "count", "resolution_mean_s")))
        ranks = next(row for row in report["failures"] if row["component"] == "rank")
        self.assertAlmostEqual(8000 * 2 / 3600 / 2, ranks["mttf_h"], 9)
        self.assertEqual({"nodes": 2, "namings": 2}, {key: report["lemons"][key] for key in ("nodes", "namings")})
        status = json.loads(self.lockstep("status", "--run", self.with_run_json("x/first"), "--json"))
        listed = next(run for run in report["costliest_runs"] if run["job"] == "first")
        self.assertEqual(status["ettr"]["cumulative"], listed["ettr"])
        self.assertEqual(self.lockstep("report", self.root), self.lockstep("report", self.root / "x", self.root))

    def with_run_json(self, run):
        (self.root / run / "run.json").write_text("{}")
        return self.root / run

    def test_a_lemon_among_its_peers(self):
        for index in range(10):
            crashes = [(1500 + 100 * i, 1) for i in range(12)] if index == 3 else [(2000, index % 2)]
            one_run(self.root / f"run-{index}", EPOCH_2026 + index * DAY, crashes, nodes=(f"n{2 * index}", f"n{2 * index + 1}"))
        report = self.report("--all-runs")
        self.assertEqual(set(), undocumented(report, "report.md"))
        lemons = report["lemons"]["lemons"]
        self.assertEqual([("n7", 12)], [(lemon["node"], lemon["named"]) for lemon in lemons])
        self.assertEqual([], self.report("--days", "2")["lemons"]["lemons"])

    def test_a_standby_in_the_place_of_a_node(self):
        run = Journal(self.root / "run", EPOCH_2026, nodes=("a", "b"), standbys=1)
        run.add(1001, "standby_came", {"node": {"name": "s", "ranks": 1, "token": "s"}})
        run.come_up(1010)
        run.see(10, 2000)
        run.add(2000, "agent_gone", {"node": 1, "why": "it is silent"})
        run.restart(2000, 10)
        run.see(20, 1000 + DAY)
        run.write()
        report = self.report("--machines", "1024", "--replace-h", "24", "--reschedule-s", "300", "--requeue-s", "600")
        sized = report["standbys"]
        self.assertEqual((1, "evict"), (sized["nodes_lost"], report["resolution"][0]["resolved_by"]))
        self.assertAlmostEqual(2, sized["node_days"], 4)
        self.assertGreater(sized["enough"]["per_day_at_high"], sized["enough"]["per_day"])
        self.assertEqual(2.0, sized["times"]["evict_s"])
        self.assertEqual(["standby", "reschedule", "requeue", "oracle"], [row["strategy"] for row in sized["scheduling"]])
        self.assertEqual(set(), undocumented(report, "report.md"))

    def test_what_cannot_be_read_is_named(self):
        one_run(self.root / "good", EPOCH_2026)
        (self.root / "bad").mkdir()
        (self.root / "bad" / "journal.sqlite").write_bytes(b"SQLite format 3\0 is not all there is to it")
        (self.root / "attended").mkdir()
        (self.root / "attended" / "run.json").write_text("{}")
        report = self.report(self.root / "nowhere")
        self.assertEqual((1, 1, 2), tuple(report["runs"][key] for key in ("read", "without_journal", "unread")))
        self.assertEqual({"bad", "nowhere"}, {pathlib.Path(one["path"]).name for one in report["unread"]})

    def test_refused(self):
        for text, words in {"there is no run to report of": [self.root], "No such file": [self.root / "nowhere"], "DIR is required": [],
                            "--days": [self.root, "--days", "0"]}.items():
            with self.subTest(text):
                self.assertIn(text, self.lockstep("report", *words, code=2))

    def test_standbys(self):
        for machines, published in ((128, 2), (256, 2), (512, 3), (1024, 4)):
            sized = json.loads(self.lockstep("standbys", "--machines", machines, "--daily-rate", "0.12%", "--json"))
            self.assertEqual(published, sized["standbys"]["per_day"], machines)
        preset = json.loads(self.lockstep("standbys", "byterobust-512", "--replace-h", "24", "--json"))
        times = {row["strategy"]: row["times_standby"] for row in preset["scheduling"]}
        self.assertAlmostEqual(10.87, times["requeue"], 2)
        self.assertAlmostEqual(5.36, times["reschedule"], 2)
        self.assertAlmostEqual(1.0519, 1 / times["oracle"], 4)
        self.assertEqual(4, preset["standbys"]["while_replaced"])
        self.assertIn("per_day", self.lockstep("standbys", "byterobust-512"))
        for text, words in {"--machines and --daily-rate": [], "a share such as": ["--machines", 3, "--daily-rate", "often"],
                            "0 to 1": ["--machines", 3, "--daily-rate", "3"],
                            "both --standby-s": ["--machines", 3, "--daily-rate", "1%", "--requeue-s", 9]}.items():
            with self.subTest(text):
                self.assertIn(text, self.lockstep("standbys", *words, code=2))


if __name__ == "__main__":
    unittest.main()
