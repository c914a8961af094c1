"""`lockstep inspect` as a user runs it, on folders that stand for a machine."""
import json
import pathlib
import subprocess
import tempfile
import unittest

from harness import BINARY

PRESET = pathlib.Path(__file__).parents[2] / "presets/inspect/default.toml"
PANIC = "Kernel panic - not syncing: Fatal exception in interrupt"


class Inspect(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.write("sys/class/net/eth0/operstate", "up")
        self.write("sys/class/net/eth0/device/vendor", "0x15b3")
        self.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 600 kB")

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text + "\n")

    def lockstep(self, *words, code=0):
        done = subprocess.run([BINARY, "inspect", *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(code, done.returncode, done.stderr + done.stdout)
        return done.stderr if code == 2 else done.stdout

    def inspect(self, *words, code=0):
        return json.loads(self.lockstep("--root", self.root, "--json", *words, code=code))

    def test_one_look(self):
        report = self.inspect("--once")
        self.assertEqual([], report["alerts"])
        self.assertIn("eth0", [reading["subject"] for reading in report["readings"]])
        why = {row["item"]: row["why"] for row in report["unavailable"]}
        self.assertEqual(f"{self.root}/dev/kmsg: No such file or directory", why["kernel_fault"])
        self.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 1 kB")
        self.write("dev/kmsg", f"2,1,5,-;{PANIC}")
        alerts = self.inspect("--once", code=1)["alerts"]
        self.assertEqual([("memory_low", "warning"), ("kernel_fault", "machine")],
                         sorted(((alert["item"], alert["class"]) for alert in alerts), reverse=True))
        self.assertIn(PANIC, self.lockstep("--root", self.root, "--once", code=1))

    def test_what_lasts_is_an_alert_and_what_is_new_is_not_yet(self):
        config = self.root / "config.toml"
        config.write_text("nics = [\"eth1\"]\n[nic_down]\ninterval_s = 0.1\ntolerance_s = 0.5\n")
        self.write("sys/class/net/eth1/operstate", "down")
        report = self.inspect("--for", "1", "--config", config, code=1)
        self.assertEqual([("nic_down", "eth1", "network")], [(a["item"], a["subject"], a["class"]) for a in report["alerts"]])
        self.assertGreaterEqual(report["alerts"][0]["lasted_s"], 0.5)
        config.write_text("nics = [\"eth1\"]\n")
        report = self.inspect("--for", "0.2", "--config", config)
        self.assertEqual([], report["alerts"])
        self.assertEqual(["nic_down"], [alert["item"] for alert in report["not_yet_alerts"]])

    def test_a_log(self):
        log = self.root / "dmesg.txt"
        log.write_text("[    1.0] random: crng init done\n[    2.0] I/O error, dev sdb, sector 1\n[    3.0] I/O error, dev sdb, sector 2\n")
        report = json.loads(self.lockstep("--log", log, "--json", code=1))
        self.assertEqual(3, report["lines"])
        self.assertEqual([("kernel_disk", "sdb", "machine", 2)],
                         [(f["item"], f["subject"], f["class"], f["lines"]) for f in report["findings"]])
        log.write_text("[    1.0] random: crng init done\n")
        self.assertEqual([], json.loads(self.lockstep("--log", log, "--json"))["findings"])
        self.assertIn("--config", self.lockstep("--log", log, "--config", PRESET, code=2))

    def test_settings(self):
        self.assertEqual(PRESET.read_text(), self.lockstep("--print-config"))
        self.assertEqual(PRESET.read_text(), self.lockstep("--print-config", "--config", PRESET))
        config = self.root / "config.toml"
        config.write_text("[nic_dwon]\ntolerance_s = 5\n")
        self.assertIn("config.toml:1:2: nic_dwon is not a known key; did you mean nic_down?", self.lockstep("--config", config, code=2))
        self.assertIn("no such directory", self.lockstep("--root", self.root / "nowhere", code=2))
        self.assertIn("no such file", self.lockstep("--once", self.root / "nowhere", code=2).lower())


if __name__ == "__main__":
    unittest.main()
