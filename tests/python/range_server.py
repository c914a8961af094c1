"""A web server with range requests, as a process of its own that a test can kill.

    with RangeServer(folder) as server:
        server.url            # http://127.0.0.1:PORT/
        server.kill()         # at once
        server.start()        # the same port
"""
import http.server
import os
import pathlib
import re
import signal
import subprocess
import sys


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for the acknowledgement of its own header

    def do_GET(self):
        path = pathlib.Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        content, about = path.read_bytes(), path.stat()
        tag = f'"{about.st_mtime_ns:x}-{about.st_size:x}"'
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        whole = not found or self.headers.get("If-Range", tag) != tag
        first, last = (0, len(content) - 1) if whole else (int(found[1]), min(int(found[2]), len(content) - 1))
        self.send_response(200 if whole else 206)
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(last - first + 1))
        if not whole:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.end_headers()
        self.wfile.write(content[first : last + 1])

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


class RangeServer:
    def __init__(self, folder):
        self.folder, self.port, self.process = str(folder), 0, None
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def start(self):
        self.process = subprocess.Popen([sys.executable, __file__, self.folder, str(self.port)], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.returncode is None:
            self.kill()


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    server = Server(("127.0.0.1", int(sys.argv[2])), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
