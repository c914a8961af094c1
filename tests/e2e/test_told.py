"""What others are told while a job runs: a webhook hears of its incidents, and who has the token reads its metrics and status."""
import http.server
import json
import re
import socket
import threading
import unittest
import urllib.error
import urllib.request

from harness import Run, RunTest

TOKEN = "open-sesame"
ORIGIN = ("job", "run", "host")


class Listener(http.server.ThreadingHTTPServer):
    """Keeps (path, type, body) of whatever is posted."""

    def __init__(self, test):
        super().__init__(("127.0.0.1", 0), Answer)
        self.posts = []
        thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        thread.start()
        test.addCleanup(self.server_close)
        test.addCleanup(thread.join)
        test.addCleanup(self.shutdown)

    def incidents(self):
        """The newest word on each, without where it comes from."""
        heard = [json.loads(body) for _, _, body in self.posts]
        return list({incident["id"]: {key: incident[key] for key in incident if key not in ORIGIN} for incident in heard}.values())


class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((self.path, self.headers["Content-Type"], body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *words):
        pass


class Told(RunTest):
    def start(self, token=TOKEN):
        self.listener = Listener(self)
        file = self.folder() / "token"
        file.write_text(token)
        hook = f"http://127.0.0.1:{self.listener.server_port}/hook?key=secret"
        run = Run(self, "no_torch.py", "--steps", "100000", "--kill", "1:10", ranks=2, options=[
            "--metrics-port", "0", "--token-file", str(file), "--webhook", hook])
        self.find_metrics(run)
        return run

    def find_metrics(self, run):
        self.url, = run.wait("the address", lambda: re.findall(r"metrics on (http://127\.0\.0\.1:\d+)/metrics", run.stderr()))

    def get(self, page, token=None):
        """(status, body)"""
        request = urllib.request.Request(self.url + page, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self):
        status, text = self.get("/metrics", TOKEN)
        self.assertEqual(200, status, text)
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def test_a_killed_rank(self):
        run = self.start()
        run.wait("the incident's end", lambda: [one for one in self.listener.incidents() if one["closed"]])
        self.assert_metrics(run)
        self.assert_guarded(run)
        self.assertEqual(0, run.ask("stop").returncode, run)
        run.finish(code=1)
        self.assert_repaired(run, [1], {"crash"})
        self.assertEqual(*map(but_for_phases, (run.incidents(), self.listener.incidents())), run)
        first = json.loads(self.listener.posts[0][2])
        self.assertEqual(("crash", [{"kind": "rank", "name": "1"}], None), (first["symptom"], first["suspects"], first["closed"]), run)
        self.assertEqual([run.status()["job"], str(run.dir), socket.gethostname()], [first[key] for key in ORIGIN], run)
        self.assertEqual({("/hook?key=secret", "application/json")}, {post[:2] for post in self.listener.posts})
        self.assertNotIn("secret", run.stderr(), run)

    def assert_metrics(self, run):
        """A page is as old as the last look, and a post counts when its answer has come: both may follow the post itself."""
        delivered = 'lockstep_webhook_posts_total{result="delivered"}'
        expected = {"lockstep_up": 1, "lockstep_epoch": 2, "lockstep_incidents_open": 0, 'lockstep_incidents_total{symptom="crash"}': 1,
                    'lockstep_incidents_total{symptom="stopped"}': 0, 'lockstep_webhook_posts_total{result="failed"}': 0,
                    "lockstep_restarts_total": 1}
        run.wait(f"{expected} in the metrics", lambda: expected.items() <= self.metrics().items())
        run.wait("the posts in the metrics", lambda: self.metrics()[delivered] == len(self.listener.posts))
        self.assertGreater(self.metrics()['lockstep_lost_seconds_total{phase="restart"}'], 0, run)
        status, text = self.get("/api/v1/status", TOKEN)
        self.assertEqual((200, 2, 1), (status, json.loads(text)["epoch"], json.loads(text)["restarts"]), run)

    def assert_guarded(self, run):
        for page in ("/metrics", "/api/v1/status"):
            for token in (None, "", "open", TOKEN + "x"):
                status, text = self.get(page, token)
                self.assertEqual(401, status, run)
                self.assertNotIn("epoch", text, run)

    def test_a_webhook_that_nobody_hears(self):
        """The job goes on, and the metrics count what was in vain."""
        run = self.start()
        self.listener.shutdown()
        self.listener.server_close()
        run.wait("what was in vain", lambda: self.metrics().get('lockstep_webhook_posts_total{result="failed"}', 0) > 0)
        self.assertEqual(0, run.ask("stop").returncode, run)
        run.finish(code=1)
        self.assert_repaired(run, [1], {"crash"})

    def test_whoever_watches_next_tells_the_same(self):
        run = self.start()
        run.wait("the incident's end", lambda: [one for one in self.listener.incidents() if one["closed"]])
        for number in range(2):  # what it was told is kept again
            run.watcher.kill()
            run.watcher.wait()
            run.resume("--grace-s", "5")
            self.find_metrics(run)
            self.assertEqual(401, self.get("/metrics")[0], run)
            run.wait("the metrics", lambda: self.metrics()["lockstep_up"] == 1)
            run.wait("the webhook to hear", lambda: [one["symptom"] for one in self.listener.incidents()].count("watcher_lost") == number + 1)
            self.assertIn("no effect with --resume: --grace-s", run.stderr())
        run.watcher.kill()
        run.watcher.wait()
        with socket.create_server(("127.0.0.1", 0)) as other:
            run.resume("--metrics-port", str(other.getsockname()[1]))
            run.wait("adoption", lambda: "adopted the workers" in run.stderr())
            self.assertIn(f"goes on without: port {other.getsockname()[1]} on 127.0.0.1 is in use", run.stderr())
        self.assertEqual(0, run.ask("stop").returncode, run)
        run.finish(code=1)

    def test_a_token_file_that_ends_with_a_newline(self):
        """As `echo` and editors write it."""
        run = self.start(TOKEN + "\n")
        self.assertEqual(200, self.get("/metrics", TOKEN)[0])
        self.assertEqual(401, self.get("/metrics")[0])
        self.assertEqual(0, run.ask("stop").returncode, run)
        run.finish(code=1)

    def test_refused(self):
        empty = self.folder() / "token"
        empty.write_text("\n")
        refused = [(["--metrics-port", "0", "--token-file", str(empty)], "is empty")]
        refused += [(["--metrics-port", "0", "--metrics-host", "0.0.0.0"], "token"), (["--metrics-port", "0", "--token-file", "/nowhere/token"], "/nowhere/token"),
                   (["--token-file", str(empty)], "--token-file needs --metrics-port"), (["--metrics-host", "::1"], "--metrics-host needs --metrics-port"),
                   (["--webhook", "ftp://127.0.0.1/hook"], "webhook: the URL must begin")]
        for options, text in refused:
            with self.subTest(options):
                run = Run(self, "no_torch.py", ranks=2, options=options)
                run.finish(2, timeout=20)
                self.assertIn(text, run.stderr().splitlines()[-1], run)
                self.assertFalse((run.dir / "run.json").exists(), "the corrected command may use the directory")


def but_for_phases(incidents):
    """The ledger may find out late when a phase ended, and move the boundary."""
    return [{name: value for name, value in incident.items() if name != "phases"} for incident in incidents]


if __name__ == "__main__":
    unittest.main()
