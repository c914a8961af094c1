"""The command line itself: what it refuses is one line that says what was expected, and where help is."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

from harness import BINARY

NUMBERS = {
    "--batch: expected a whole number, found 1.5; see lockstep plan --help": ["plan", "--batch", "1.5"],
    "--top: expected a whole number, found 1e2": ["plan", "--top", "1e2"],
    "--hang-limit-s: expected a number above 0, found nan; see lockstep run --help": ["run", "--hang-limit-s", "nan", "train.py"],
    "--hang-limit-s: expected a number above 0, found 0": ["run", "--hang-limit-s", "0", "train.py"],
    "--grace-s: expected a number from 0, found inf": ["run", "--grace-s", "inf", "train.py"],
    "--for: expected 0.001 to 1000000000, found -1": ["drill", "stop", "--for", "-1s"],
    "--for: expected 0.001 to 1000000000": ["drill", "stop", "--for", "1e300"],
    "in a period above 0, found 3 in inf s": ["downtime", "--failures", "3", "--days", "inf"],
    "--pack: x not in {best-fit,chunk}": ["feed", "serve", "--data", "/", "--pack", "x"],
    "needs the scheduler that is to run it: --cluster slurm": ["coordinator", "--listen", "127.0.0.1:1", "--standby-job", __file__],
    "--days: expected 0.001 to 3650, found nan": ["report", "/", "--days", "nan"],
    "--every: expected 0.01 to 3600, found 1s": ["record", "/", "--out", "/no.records", "--every", "1s"],
    "--images: expected a number above 0, found 0; see lockstep feed bench --help": ["feed", "bench", "--dir", "/", "--images", "0"],
    "--cache: expected a size, such as 8G or 512M, found -5": ["feed", "serve", "--data", "/", "--cache", "-5"],
    "--seed: expected a number from 0, found -5": ["simulate", "trace", "/no", "--seed", "-5"],
    "--run: it is empty": ["stop", "--run", ""],
    "--listen 127.0.0.1:99999: expected HOST:PORT": ["feed", "serve", "--data", "/", "--listen", "127.0.0.1:99999"],
    "--data feed://: expected feed://HOST:PORT": ["feed", "serve", "--data", "feed://"],
    "expected one without /, found \"a/b\"": ["run", "--job", "a/b", __file__],
    "--coordinator 127.0.0.1:1: it leads a job of several nodes": ["run", "--nnodes", "1", "--coordinator", "127.0.0.1:1", __file__],
    "/nowhere/policy: no such file": ["policy", "--policy", "/nowhere/policy"],
    "--top: expected 1 to 1000, found 1001": ["plan", "--top", "1001"],
    '--node-name "b\ufffd" is no UTF-8, in which a run keeps it; rename it': ["run", "--node-name", b"b\xff", __file__],
    '--rdzv-id "b\ufffd" is no UTF-8': ["run", "--rdzv-id", b"b\xff", __file__],
    '--run "/tmp/\ufffd" is no UTF-8': ["coordinator", "--listen", "127.0.0.1:1", "--run", b"/tmp/\xff"],
}


def commands(text):
    """The names in the list of subcommands of a --help."""
    return re.findall(r"^  ([a-z][a-z0-9-]*)", text.partition("\nSubcommands:\n")[2], re.MULTILINE)


class Usage(unittest.TestCase):
    def refusal(self, *words):
        done = subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((2, ""), (done.returncode, done.stdout), done)
        self.assertRegex(done.stderr, r"\Alockstep: [^\n]{1,400}\n\Z")
        return done.stderr

    def test_numbers(self):
        for text, words in NUMBERS.items():
            with self.subTest(text):
                self.assertIn(text, self.refusal(*words))

    def test_a_directory_that_is_no_text(self):
        with tempfile.TemporaryDirectory() as folder:
            odd = os.path.join(os.fsencode(folder), b"d\xff")
            os.mkdir(odd)
            done = subprocess.run([BINARY, "run", "--dry-run", "--python", sys.executable, os.path.abspath(__file__)], cwd=odd, capture_output=True, text=True, errors="replace", timeout=60, check=False)
            self.assertEqual(2, done.returncode, done)
            self.assertIn("lockstep: the working directory", done.stderr)
            self.assertIn('d\ufffd" is no UTF-8, in which a run keeps it', done.stderr)

    def test_a_directory_that_is_gone(self):
        script = os.path.abspath(__file__)
        for words in (["run", "--dry-run"], ["replay", "--machines", "2"]):
            with tempfile.TemporaryDirectory() as folder:
                command = ["sh", "-c", 'mkdir gone; cd gone; rmdir ../gone; exec "$@"', "sh", BINARY, *words, "--python", sys.executable, script]
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
                said = "lockstep: the working directory: No such file or directory; change to one that is there\n"
                self.assertEqual((2, "", said), (done.returncode, done.stdout, done.stderr))

    def test_output_that_can_t_be_written(self):
        with open("/dev/full", "wb") as full:
            for words in (["policy"], ["--help"], ["plan", "--help"], ["--version"], ["downtime", "c4-2023-12"], ["plan", "--model", "llama3-8b", "--cluster", "dgx-h100:8", "--batch", "64", "--json"]):
                done = subprocess.run([BINARY, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
                self.assertEqual((2, "lockstep: standard output: No space left on device\n"), (done.returncode, done.stderr), words)
            self.assertEqual(2, subprocess.run([BINARY, "rum"], stdout=full, stderr=full, timeout=60, check=False).returncode)

    def test_the_script_is_in_the_usage(self):
        for command, usage in ("run", "SCRIPT [ARGS...]"), ("replay", "[SCRIPT [ARGS...]]"):
            help_of = subprocess.run([BINARY, command, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
            self.assertRegex(help_of, rf"(?m)^Usage: lockstep {command} \[OPTIONS\] {re.escape(usage)}$")

    def test_what_no_command_knows(self):
        self.assertIn('there is no command "rum"', self.refusal("rum"))
        self.assertIn("A subcommand is required; see lockstep --help", self.refusal())
        seen = 0
        waiting = [[]]
        while waiting:
            words = waiting.pop()
            done = subprocess.run([BINARY, *words, "--help"], capture_output=True, text=True, timeout=60, check=True)
            self.assertEqual("", done.stderr)
            waiting += [[*words, name] for name in commands(done.stdout)]
            seen += 1
            self.refusal(*words, "--no-such-option")
        self.assertGreater(seen, 30)


if __name__ == "__main__":
    unittest.main()
