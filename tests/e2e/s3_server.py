"""A small S3 of the tests' own: a stand-in for a remote service, written from the protocol's documentation and sharing nothing with our client.

Keeps objects in memory, checks every signature (Signature Version 4, with its own computation of it), every payload hash, and the rules of
multipart uploads. PUT, GET with ranges, HEAD, DELETE, ListObjectsV2 by pages, ListMultipartUploads.

    with S3Server() as s3:
        env = s3.environment()          # what a client needs
        s3.trouble = s3.busy(3)         # the next three requests are answered 503

`trouble(handler)`: called for each request that is signed well; True: it has answered, or has cut the connection, itself.
"""
import hashlib
import hmac
import http.server
import re
import socket
import sys
import threading
import time
import urllib.parse
import xml.sax.saxutils

ACCESS, SECRET, REGION = "TESTKEY", "a secret/of+the test", "test-region-1"
MIN_PART = 5 << 20
PAGE = 3  # keys of a page, so that there are several


class S3Server:
    def __init__(self, bucket="bucket"):
        self.bucket, self.objects, self.uploads, self.log = bucket, {}, {}, []
        self.refused = []  # requests whose signature, hash or time was wrong
        self.trouble = None
        self.counter = 0
        self.lock = threading.Lock()
        self.http = Server(("127.0.0.1", 0), type("Handler", (Handler,), {"s3": self}))
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]

    def __enter__(self):
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def environment(self):
        return {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_REGION": REGION, "AWS_ACCESS_KEY_ID": ACCESS,
                "AWS_SECRET_ACCESS_KEY": SECRET}

    def busy(self, times, method=None):
        """503 to the next `times` requests of a method."""
        left = [times]

        def answer(handler):
            if left[0] == 0 or method not in (None, handler.command):
                return False
            left[0] -= 1
            handler.fail(503, "SlowDown", "Please reduce your request rate.")
            return True

        return answer


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # a client that was killed is what some tests are about
            super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for the acknowledgement of its own header
    s3 = None

    def log_message(self, *_):
        pass

    def handle_any(self):
        path, _, query = self.path.partition("?")
        self.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.s3.lock:
            self.s3.log.append((self.command, self.path))
        wrong = self.wrong_signature(path)
        if wrong:
            self.s3.refused.append((self.command, self.path, wrong))
            return self.fail(403, wrong, "The request was not signed as it should be.")
        if self.s3.trouble and self.s3.trouble(self):
            return None
        _, bucket, *key = urllib.parse.unquote(path).split("/", 2)
        if bucket != self.s3.bucket:
            return self.fail(404, "NoSuchBucket", "The specified bucket does not exist")
        with self.s3.lock:
            return self.act(key[0] if key else "")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    # ---- signatures ----

    def wrong_signature(self, path):
        match = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})",
                             self.headers.get("Authorization", ""))
        if not match:
            return "AccessDenied"
        access, day, region, names, signature = match.groups()
        stamp = self.headers.get("x-amz-date", "")
        if access != ACCESS:
            return "InvalidAccessKeyId"
        if region != REGION or stamp[:8] != day:
            return "AuthorizationHeaderMalformed"
        if abs(time.time() - time.mktime(time.strptime(stamp, "%Y%m%dT%H%M%SZ")) + time.timezone) > 900:
            return "RequestTimeTooSkewed"
        if hashlib.sha256(self.body).hexdigest() != self.headers.get("x-amz-content-sha256"):
            return "XAmzContentSHA256Mismatch"
        if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names.split(";")):
            return "AccessDenied"
        pairs = sorted(self.query.items())
        query = "&".join(f"{urllib.parse.quote(k, safe='-_.~')}={urllib.parse.quote(v, safe='-_.~')}" for k, v in pairs)
        lines = [self.command, urllib.parse.quote(urllib.parse.unquote(path), safe="/-_.~"), query,
                 *(f"{name}:{self.headers[name].strip()}" for name in names.split(";")), "", names, self.headers["x-amz-content-sha256"]]
        scope = f"{day}/{region}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256("\n".join(lines).encode()).hexdigest()])
        key = b"AWS4" + SECRET.encode()
        for word in scope.split("/"):
            key = hmac.digest(key, word.encode(), "sha256")
        found = hmac.new(key, text.encode(), "sha256").hexdigest()
        return None if hmac.compare_digest(found, signature) else "SignatureDoesNotMatch"

    # ---- operations ----

    def act(self, key):
        q = self.query
        if self.command == "GET" and not key:
            return self.list_uploads() if "uploads" in q else self.list_objects()
        if self.command == "POST":
            return self.begin(key) if "uploads" in q else self.complete(key, q["uploadId"])
        if self.command == "PUT":
            return self.put_part(key) if "uploadId" in q else self.put(key)
        if self.command == "DELETE":
            (self.s3.uploads.pop(q["uploadId"], None) if "uploadId" in q else self.s3.objects.pop(key, None))
            return self.answer(204)
        return self.get(key)

    def put(self, key):
        self.s3.objects[key] = self.body
        self.answer(200, headers={"ETag": self.etag(self.body)})

    def get(self, key):
        if key not in self.s3.objects:
            return self.fail(404, "NoSuchKey", "The specified key does not exist.")
        data = self.s3.objects[key]
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not match:
            return self.answer(200, data)
        first, last = map(int, match.groups())
        return self.fail(416, "InvalidRange", "no such range") if first >= len(data) else self.answer(206, data[first : last + 1])

    def begin(self, key):
        self.s3.counter += 1
        upload = f"upload/{self.s3.counter}+="
        self.s3.uploads[upload] = (key, {})
        self.xml(f"<InitiateMultipartUploadResult><Key>{key}</Key><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>")

    def put_part(self, key):
        if self.query["uploadId"] not in self.s3.uploads:
            return self.fail(404, "NoSuchUpload", "The upload does not exist.")
        self.s3.uploads[self.query["uploadId"]][1][int(self.query["partNumber"])] = self.body
        return self.answer(200, headers={"ETag": self.etag(self.body)})

    def complete(self, key, upload):
        if upload not in self.s3.uploads:
            return self.fail(404, "NoSuchUpload", "The upload does not exist.")
        _, parts = self.s3.uploads[upload]
        wanted = [(int(number), etag) for number, etag in re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>(.*?)</ETag>", self.body.decode())]
        if [number for number, _ in wanted] != sorted(parts) or any(self.etag(parts[n]) != xml.sax.saxutils.unescape(e, {"&quot;": '"'}) for n, e in wanted):
            return self.fail(400, "InvalidPart", "One or more of the specified parts could not be found.")
        if any(len(parts[number]) < MIN_PART for number, _ in wanted[:-1]):
            return self.fail(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed object size.")
        self.s3.objects[key] = b"".join(parts[number] for number, _ in wanted)
        del self.s3.uploads[upload]
        return self.xml("<CompleteMultipartUploadResult/>")

    def list_objects(self):
        prefix, delimiter, after = (self.query.get(name, "") for name in ("prefix", "delimiter", "continuation-token"))
        names = set()
        for key in self.s3.objects:
            if key.startswith(prefix):
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                names.add(key if cut < 0 else key[: cut + 1])
        rest = sorted(name for name in names if name > after)
        page, more = rest[:PAGE], len(rest) > PAGE
        escape = xml.sax.saxutils.escape
        entries = "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" if delimiter and name.endswith(delimiter)
                          else f"<Contents><Key>{escape(name)}</Key><Size>{len(self.s3.objects[name])}</Size></Contents>" for name in page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        self.xml(f"<ListBucketResult><Name>{self.s3.bucket}</Name><IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}</ListBucketResult>")

    def list_uploads(self):
        prefix = self.query.get("prefix", "")
        after = (self.query.get("key-marker", ""), self.query.get("upload-id-marker", ""))
        rest = sorted((key, upload) for upload, (key, _) in self.s3.uploads.items() if key.startswith(prefix) and (key, upload) > after)
        page, more = rest[:PAGE], len(rest) > PAGE
        found = "".join(f"<Upload><Key>{key}</Key><UploadId>{upload}</UploadId></Upload>" for key, upload in page)
        marker = f"<NextKeyMarker>{page[-1][0]}</NextKeyMarker><NextUploadIdMarker>{page[-1][1]}</NextUploadIdMarker>" if more else ""
        self.xml(f"<ListMultipartUploadsResult><IsTruncated>{str(more).lower()}</IsTruncated>{marker}{found}</ListMultipartUploadsResult>")

    # ---- answers ----

    def etag(self, data):
        return f'"{hashlib.md5(data).hexdigest()}"'

    def xml(self, text):
        self.answer(200, ('<?xml version="1.0" encoding="UTF-8"?>\n' + text).encode())

    def fail(self, status, code, message):
        self.answer(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())

    def answer(self, status, body=b"", headers=()):
        try:
            self.send_response(status)
            for name, value in dict(headers).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD" and status != 204:
                self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the client has gone

    def hang_up(self):
        """As a server that dies."""
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
