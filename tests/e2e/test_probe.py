"""`lockstep probe` as an ordinary user runs it: on one node, on two that are two processes, and comparing what they say."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from harness import BINARY, NOBODY, free_port

USER = {"user": NOBODY, "group": NOBODY} if os.geteuid() == 0 else {}
ALL = {"memory", "gemm", "all_to_all", "disk", "gpu", "aligned"}


class ProbeTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-probe-", dir="/tmp")))
        self.folder.chmod(0o777)

    def start(self, *words):
        return subprocess.Popen([BINARY, "probe", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "LOCKSTEP_LIBCUDA": "/nonexistent.so"}, **USER)

    def finish(self, process, code=0):
        out, error = process.communicate(timeout=60)
        self.assertEqual(code, process.returncode, error + out)
        return error if code == 2 else out

    def probe(self, *words, code=0):
        return self.finish(self.start(*words), code)

    def measured(self, text):
        return {one["name"]: one for one in json.loads(text)["measurements"]}


class OneNode(ProbeTest):
    def test_all_tests_of_a_healthy_machine(self):
        report = self.probe("--json", "--seconds", "0.1", "--dir", self.folder, "--layout", "tp2,pp2,dp2", "--repeat", "2", "--node", "n0")
        measured = self.measured(report)
        self.assertEqual(ALL, {name.partition(".")[0] for name in measured})
        self.assertTrue(json.loads(report)["ok"])
        self.assertIn("no GPU", measured["gpu"]["text"])
        self.assertIn("no GPU", self.probe("--tests", "gpu,gemm", "--seconds", "0", code=1))
        self.assertIn("aligned.bfloat16.tp2,pp2,dp2", measured)
        self.assertEqual([], list(self.folder.iterdir()))
        again = self.probe("--tests", "aligned", "--seconds", "0", "--json", "--layout", "tp8,pp4,dp16", "--node", "n1")
        for name, one in self.measured(again).items():
            self.assertEqual(measured[name]["value"], one["value"])  # a layout is cut down to what is computed
        self.assertIn("aligned.single.tp1,pp1,dp1", self.probe("--tests", "aligned", "--seconds", "0"))

    def test_a_full_disk_is_a_finding(self):
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=777", "tmpfs", self.folder], capture_output=True, check=False)
        if mounted.returncode != 0:
            self.skipTest("mount is not allowed here")
        self.addCleanup(subprocess.run, ["umount", self.folder], check=True)
        report = self.probe("--tests", "disk", "--seconds", "1", "--dir", self.folder, "--json", code=1)
        bits = self.measured(report)["disk.bits"]
        self.assertFalse(bits["ok"])
        self.assertIn("No space left on device", bits["text"])
        self.assertIn("2 of 64 MiB written, 2 read back", bits["text"])
        self.assertEqual([], list(self.folder.iterdir()))
        self.assertEqual(2 << 20, os.statvfs(self.folder).f_bavail * os.statvfs(self.folder).f_frsize, "all of it is free again")

    def test_ctrl_c_ends_it(self):
        process = self.start("--seconds", "3000")
        while not self.catches_interrupt(process.pid):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
        self.assertEqual(1, process.returncode)
        self.assertEqual("lockstep: interrupted\n", error)

    def catches_interrupt(self, pid):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1

    def test_refused(self):
        for text, words in {"there is no test \"cpu\"": ["--tests", "cpu"], "neighbours needs --peers": ["--tests", "neighbours"],
                            "expected both --peers and --listen": ["--peers", "a:1,b:2"], "at least 2": ["--peers", "a:1", "--listen", "a:1"],
                            "expected one of --peers": ["--peers", "a:1,b:2", "--listen", "c:3"], "a:1 twice": ["--peers", "a:1,a:1", "--listen", "a:1"],
                            "--peers: expected HOST:PORT": ["--peers", "a,b", "--listen", "a"], "--listen: expected HOST:PORT": ["--peers", "a:1,b:2", "--listen", "fd00::1:1"], "tp must": ["--layout", "tp0"],
                            "--seconds: expected 0": ["--seconds", "-1"], "--repeat: expected at least 1": ["--repeat", "0"]}.items():
            with self.subTest(text):
                error = self.probe(*words, code=2)
                self.assertIn(text, error)
                self.assertEqual(1, error.count("\n"), error)


class Nodes(ProbeTest):
    def setUp(self):
        super().setUp()
        self.nodes = [f"127.0.0.1:{free_port()}" for _ in range(2)]

    def node(self, which, *words):
        return self.start("--tests", "neighbours", "--seconds", "5", "--peers", ",".join(self.nodes), "--listen", self.nodes[which],
                          "--node", f"n{which}", "--json", *words)

    def test_two_nodes(self):
        both = [self.node(0, "--wait-s", "30"), self.node(1, "--wait-s", "30")]
        for which, process in enumerate(both):
            report = self.finish(process)
            measured = self.measured(report)
            self.assertGreater(measured["neighbours.receive"]["value"], 0)
            self.assertEqual(self.nodes[1 - which], measured["neighbours.receive"]["with"])
            self.assertEqual(self.nodes[which], json.loads(report)["address"])

    def test_a_peer_that_is_not_there(self):
        measured = self.measured(self.finish(self.node(0, "--wait-s", "0.5"), code=1))
        self.assertIn("Connection refused", measured["neighbours.send"]["text"])
        self.assertIn("it did not come within 0.5 s", measured["neighbours.receive"]["text"])

    def test_a_peer_that_sends_garbage(self):
        process = self.node(0, "--wait-s", "2")
        host, port = self.nodes[0].split(":")
        while True:
            try:
                talker = socket.create_connection((host, int(port)), timeout=5)
                break
            except ConnectionRefusedError:
                self.assertIsNone(process.poll(), "it listens")
                time.sleep(0.01)
        with talker:
            talker.sendall(b"\x16\x03\x01" + bytes(range(256)) * 10)
            measured = self.measured(self.finish(process, code=1))
        self.assertIn("somebody came, but it is no lockstep probe", measured["neighbours.receive"]["text"])


class Compare(ProbeTest):
    def files(self, rates, bits=None):
        paths = []
        for i, rate in enumerate(rates):
            measurements = [{"name": "memory.all", "value": rate, "unit": "GB/s", "ok": True, "text": ""},
                            {"name": "aligned.single.tp1,pp1,dp1", "value": (bits or {}).get(i, 7), "unit": "crc32c", "ok": True, "text": ""}]
            path = self.folder / f"n{i}.json"
            path.write_text(json.dumps({"format": 1, "node": f"n{i}", "address": "", "isa": "x86_64", "type": "a", "measurements": measurements}))
            paths.append(path)
        return paths

    def compare(self, *words, code=0):
        return json.loads(self.probe("compare", *words, "--json", code=code))

    def test_who_is_slow_and_who_computes_otherwise(self):
        self.assertTrue(self.compare(*self.files([10, 10.2, 9.9]))["healthy"])
        report = self.compare(*self.files([10, 10.2, 4, 9.9], {1: 8}), code=1)
        self.assertEqual([["n1"], ["n2"]], [finding["suspects"] for finding in report["findings"]])
        self.assertIn("60 % worse", report["findings"][1]["evidence"])
        self.assertIn("n2", self.probe("compare", *self.files([10, 10.2, 4, 9.9]), code=1))

    def test_two_nodes_and_a_history(self):
        unsure = self.compare(*self.files([10, 4]))
        self.assertIsNone(unsure["healthy"])
        self.assertIn("too few", unsure["unknown"][0])
        tie = self.compare(*self.files([10, 10], {1: 8}), code=1)
        self.assertEqual((["n0", "n1"], True), (tie["findings"][0]["suspects"], tie["findings"][0]["ambiguous"]))
        history = self.folder / "healthy.jsonl"
        for _ in range(2):
            self.compare(*self.files([10, 10.1, 9.9]), "--history", history, "--learn")
        self.assertEqual(3, len(history.read_text().splitlines()), "what is there already is not learnt again")
        report = self.compare(*self.files([10.05, 4]), "--history", history, "--learn", code=1)
        self.assertEqual([["n1"]], [finding["suspects"] for finding in report["findings"]])
        self.assertEqual(4, len(history.read_text().splitlines()), "the one that is suspected is not learnt from")
        self.assertEqual(1, report["learnt"])

    def test_refused(self):
        one = self.files([10])[0]
        other = self.folder / "other.json"
        for text, words, content in ((f"{other}:1: expected JSON", [other], "{"), ("No such file", ["/none.json"], ""), ("found n0 again", [one, one], ""),
                                     ("found nothing", [other], ""), ("--learn needs --history", [one, "--learn"], ""),
                                     (f"{other}:2: expected format 1", [one, "--history", other], one.read_text() + "\n{}\n")):
            with self.subTest(text):
                other.write_text(content)
                error = self.probe("compare", *words, code=2)
                self.assertIn(text, error)
                self.assertEqual(1, error.count("\n"), error)


if __name__ == "__main__":
    unittest.main()
