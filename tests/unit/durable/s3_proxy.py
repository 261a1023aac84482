"""A proxy between a client of S3 and moto's server, which makes one request fail as told."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OWN_ANSWERS = {  # status and body
    "busy": (503, "<Error><Code>SlowDown</Code></Error>"),
    "conflict": (409, "<Error><Code>ConditionalRequestConflict</Code></Error>"),
    "no upload": (404, "<Error><Code>NoSuchUpload</Code></Error>"),
    "no end": (200, "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"),
}
_HOP_BY_HOP = ("connection", "transfer-encoding", "content-length", "date", "server")


@dataclass
class Fault:
    """Fate of the next request whose method and path contain `where`."""

    where: str
    kind: str  # one of OWN_ANSWERS, lost before, lost after, slow, no range, no date


@dataclass
class Faults:
    """Faults that are due, in order, and the requests that were seen.

    Attributes:
        due: each is used once.
        seen: methods and paths.
        released: slow requests wait for it.
    """

    due: list[Fault] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def next_for(self, request: str) -> str:
        self.seen.append(request)
        if self.due and self.due[0].where in request:
            return self.due.pop(0).kind
        return ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: Faults
    moto: tuple[str, int]

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind = self.faults.next_for(f"{self.command} {self.path}")
        if kind in OWN_ANSWERS:
            status, text = OWN_ANSWERS[kind]
            self._answer(status, {}, text.encode())
            return
        if kind == "no range":
            del self.headers["Range"]
        if kind == "slow":
            self.faults.released.wait(60)
        if kind not in ("lost before", "slow"):
            status, headers, answer = self._asked(body)
        if kind.startswith("lost") or kind == "slow":
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self._answer(status, headers, answer, is_dated=kind != "no date")

    def _asked(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.moto, timeout=30)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, *, is_dated: bool = True
    ) -> None:
        self.send_response_only(status)
        if is_dated:
            self.send_header("Date", self.date_time_string())
        for name, value in headers.items():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def proxy(moto: tuple[str, int]) -> Iterator[tuple[str, Faults]]:
    """Serve on a free port of loopback; yield the URL and the faults."""
    faults = Faults()
    methods = {f"do_{name}": _Handler.pass_on for name in ("GET", "PUT", "POST", "HEAD", "DELETE")}
    handler = type("Handler", (_Handler,), {"faults": faults, "moto": moto, **methods})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", faults
    finally:
        faults.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
