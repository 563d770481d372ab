"""A server of objects for the tests: as much of S3 as stores of obstore ask for, without signatures."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from obstore.store import S3Store

BUCKET = "bucket"


class Server(ThreadingHTTPServer):
    """Objects in memory, and what was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.asked: list[tuple[str, str]] = []
        # Statuses of requests for keys that fail.
        self.fails: dict[str, int] = {}
        # What happens before each answer.
        self.before: Any = lambda _kind, _key: None
        # Whether answers tell the versions of objects.
        self.has_versions = True
        # Whether requests to write may have conditions: "obeyed", "ignored" or "refused".
        self.conditions = "obeyed"
        # When objects were stored, in seconds.
        self.times: dict[str, int] = {}
        self.lock = threading.Lock()

    def about(self, key: str, value: bytes) -> dict[str, str]:
        """Return the headers of an object."""
        version = {"ETag": f'"{hash(value)}"'} if self.has_versions else {}
        return {"Last_Modified": f"Mon, 01 Jan 2024 00:00:{self.times.get(key, 0):02} GMT", **version}

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        """Say nothing of connections that were lost."""

    def store(self, url: str | None = None, **kwargs: Any) -> S3Store:
        """Make a store of obstore."""
        return S3Store(
            BUCKET,
            endpoint=url or f"http://127.0.0.1:{self.server_port}",
            region="us-east-1",
            skip_signature=True,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
            **kwargs,
        )

    def count(self) -> list[tuple[str, str]]:
        """Return what was asked for since the last call, and forget it."""
        with self.lock:
            asked, self.asked = self.asked, []
        return asked


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    # Answers are not delayed for each other.
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def asked(self, kind: str) -> tuple[str, dict[str, list[str]], bytes] | None:
        """Note a request. Returns its key, its query and its body; None if it fails."""
        url = urlsplit(self.path)
        query = parse_qs(url.query, keep_blank_values=True)
        key = unquote(url.path).removeprefix(f"/{BUCKET}").lstrip("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "list-type" in query:
            kind, key = "LIST", query.get("prefix", [""])[0]
        elif "delete" in query:
            kind, key = "DELETE", ""
        with self.server.lock:
            self.server.asked.append((kind, key))
        self.server.before(kind, key)
        status = self.server.fails.get(key)
        if status is not None:
            code = {403: "AccessDenied", 404: "NoSuchBucket", 500: "InternalError"}[status]
            self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())
            return None
        return key, query, body

    def do_GET(self) -> None:
        found = self.asked("GET")
        if found is None:
            return
        key, query, _ = found
        if "list-type" in query:
            self.list(key, query.get("delimiter", [""])[0])
            return
        value = self.server.objects.get(key)
        if value is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        about = self.server.about(key, value)
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self.answer(200, value, **about)
            return
        first, last = wanted.groups()
        size = len(value)
        start = int(first) if first else max(size - int(last), 0)
        stop = min(int(last) + 1, size) if first and last else size
        if start >= stop:
            self.answer(416, b"<Error><Code>InvalidRange</Code></Error>")
            return
        self.answer(206, value[start:stop], Content_Range=f"bytes {start}-{stop - 1}/{size}", **about)

    def do_HEAD(self) -> None:
        found = self.asked("HEAD")
        if found is None:
            return
        value = self.server.objects.get(found[0])
        if value is None:
            self.answer(404)
            return
        about = self.server.about(found[0], value)
        self.answer(200, Content_Length=str(len(value)), **about)

    def do_PUT(self) -> None:
        found = self.asked("PUT")
        if found is None:
            return
        key, query, body = found
        if "uploadId" in query:
            self.server.parts[query["uploadId"][0]][int(query["partNumber"][0])] = body
            self.answer(200, ETag='"1"')
            return
        with self.server.lock:
            status = self.status_of_condition(key)
            if status == 200:
                self.server.objects[key] = body
        about = {"ETag": '"1"', **self.server.about(key, body)}
        self.answer(status, **(about if status == 200 else {}))

    def status_of_condition(self, key: str) -> int:
        """Return the status of a request to write, by its condition."""
        none, version = self.headers.get("If-None-Match"), self.headers.get("If-Match")
        if self.server.conditions == "ignored" or (none is None and version is None):
            return 200
        if self.server.conditions == "refused":
            return 501
        value = self.server.objects.get(key)
        now = None if value is None else self.server.about(key, value).get("ETag")
        return 200 if (now is None if none is not None else now == version) else 412

    def do_DELETE(self) -> None:
        found = self.asked("DELETE")
        if found is None:
            return
        if "uploadId" not in found[1]:
            self.server.objects.pop(found[0], None)
        self.answer(204)

    def do_POST(self) -> None:
        found = self.asked("POST")
        if found is None:
            return
        key, query, body = found
        if "delete" in query:
            keys = [e.text or "" for e in ElementTree.fromstring(body).iter() if e.tag.endswith("Key")]
            for each in keys:
                self.server.objects.pop(each, None)
            done = "".join(f"<Deleted><Key>{escape(each)}</Key></Deleted>" for each in keys)
            self.answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())
        elif "uploads" in query:
            upload = str(len(self.server.parts))
            self.server.parts[upload] = {}
            self.answer(
                200,
                f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
                "</InitiateMultipartUploadResult>".encode(),
            )
        else:
            parts = self.server.parts[query["uploadId"][0]]
            self.server.objects[key] = b"".join(parts[number] for number in sorted(parts))
            self.answer(
                200,
                b"<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>",
            )

    def list(self, prefix: str, delimiter: str) -> None:
        contents, common = [], set()
        for key, value in sorted(self.server.objects.items()):
            if not key.startswith(prefix):
                continue
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if found:
                common.add(prefix + head + delimiter)
            else:
                contents.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{len(value)}</Size>"
                    f"<LastModified>2024-01-01T00:00:{self.server.times.get(key, 0):02}.000Z</LastModified>"
                    "<ETag>1</ETag></Contents>"
                )
        prefixes = [f"<CommonPrefixes><Prefix>{escape(c)}</Prefix></CommonPrefixes>" for c in sorted(common)]
        body = "".join(contents + prefixes)
        self.answer(
            200,
            f"<ListBucketResult><IsTruncated>false</IsTruncated>{body}</ListBucketResult>".encode(),
        )
