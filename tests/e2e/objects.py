"""S3 servers for tests, and what may stand before them.

moto keeps to conditional puts, as S3 does, as long as one comes at a time: it looks and puts in two
steps, and on a busy machine another comes between. It takes any credentials. rclone asks for
credentials and does not keep to conditions.
"""

import contextlib
import os
import re
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from skip import skip

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / ".deps" / "s3" / "bin"
KEY, SECRET = "outlive-key", "a-secret-that-no-log-may-show"
BUCKET = "bucket"
START_S = 20.0
BUSY = (
    b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: 81\r\n\r\n"
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>less, please</Message></Error>"
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


class Turn:
    """Of a connection: the right to put on a condition, from the request to its answer."""

    def __init__(self, right: threading.Semaphore) -> None:
        self.right, self.has, self.guard = right, False, threading.Lock()

    def comes(self) -> None:
        """Waits for it."""
        self.right.acquire()
        with self.guard:
            self.has = True

    def over(self) -> None:
        """Gives it back, if it has it."""
        with self.guard:
            has, self.has = self.has, False
        if has:
            self.right.release()


class Between:
    """Stands between clients and a server, and hands on what comes, unless told otherwise."""

    def __init__(self, port: int) -> None:
        self.server = port
        self.mode = "passes"  # or "cuts": all connections at once; "holds"; "busy"
        self.unfinished: bytes | None = None  # no upload of a name with this in it comes to its end
        self.held: set[bytes] = set()  # of these the end was asked for, and did not come
        self.creating = threading.Semaphore()  # who has it puts on a condition
        self.open: set[socket.socket] = set()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def set(self, mode: str) -> None:
        """From now on, for what is open too."""
        self.mode = mode
        if mode != "passes":
            for end in list(self.open):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        if self.mode == "cuts":
            client.close()
        elif self.mode == "busy":
            with contextlib.suppress(OSError):
                client.recv(1 << 16)
                client.sendall(BUSY)
                client.shutdown(socket.SHUT_WR)
            client.close()
        elif self.mode == "holds":
            self.open.add(client)
        else:
            try:
                server = socket.create_connection(("127.0.0.1", self.server))
            except OSError:
                client.close()
                return
            self.open |= {client, server}
            turn = Turn(self.creating)
            back = threading.Thread(target=self.pump, args=(server, client, turn), daemon=True)
            back.start()
            self.pump(client, server, turn)
            back.join()
            turn.over()
            self.open -= {client, server}
            client.close()
            server.close()

    def pump(self, one: socket.socket, other: socket.socket, turn: "Turn") -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                first = data.split(b"\r\n", 1)[0]
                if first.startswith(b"HTTP/"):
                    turn.over()
                elif first.startswith(b"PUT") and b"if-none-match" in data.lower():
                    turn.comes()
                if first.startswith(b"POST") and b"uploadId=" in first:
                    while self.unfinished and self.unfinished in first:
                        self.held.add(first)
                        time.sleep(0.01)
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.set("cuts")
        self.listening.close()


@dataclass
class Objects:
    """A bucket behind a server."""

    server: int  # its port; what stands before it has another
    between: Between
    url: str = f"s3://{BUCKET}/outlive"
    more: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """What a client needs."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.between.port}",
            "AWS_ALLOW_HTTP": "true",
        } | self.more

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """A request to the server itself, which looks at no signature (moto)."""
        url = f"http://127.0.0.1:{self.server}/{BUCKET}{path}"
        signed = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request"
        headers = {"Authorization": f"{signed}, SignedHeaders=host, Signature=none"}
        request = urllib.request.Request(url, data=body, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read()

    def names(self, below: str = "") -> list[str]:
        """The job's objects, by what they are called below its own directory."""
        prefix = "outlive/test/"
        said = self.ask("GET", f"?list-type=2&prefix={prefix}{below}").decode()
        return [name.removeprefix(prefix) for name in re.findall("<Key>(.*?)</Key>", said)]

    def upload_ids(self) -> set[tuple[str, str]]:
        """Uploads that were begun and are neither complete nor aborted: of what, and which."""
        said = self.ask("GET", "?uploads").decode()
        keys, ids = (re.findall(f"<{tag}>(.*?)</{tag}>", said) for tag in ("Key", "UploadId"))
        return set(zip(keys, ids, strict=True))

    def uploads(self) -> int:
        """How many these are."""
        return len(self.upload_ids())

    def get(self, name: str) -> bytes:
        """One of them."""
        return self.ask("GET", f"/outlive/test/{name}")

    def put(self, name: str, body: bytes) -> None:
        """Puts something in its place."""
        self.ask("PUT", f"/outlive/test/{name}", body)


@contextlib.contextmanager
def served(directory: Path, kind: str = "moto") -> Iterator[Objects]:
    """A server with an empty bucket, until the end."""
    port = free_port()
    if kind == "rclone":
        files = directory / "objects"
        (files / BUCKET).mkdir(parents=True)
        words = [PROGRAMS / "rclone", "serve", "s3", "--addr", f"127.0.0.1:{port}"]
        words += ["--auth-key", f"{KEY},{SECRET}", "--config", os.devnull, files]
    else:
        words = [PROGRAMS / "moto_server", "-H", "127.0.0.1", "-p", port]
    if not Path(words[0]).exists():
        skip("s3-server", f"no {words[0]}; make deps")
    with open(directory / f"{kind}.log", "wb") as log:
        server = subprocess.Popen(
            [str(word) for word in words], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        try:
            end = time.monotonic() + START_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    assert server.poll() is None, (directory / f"{kind}.log").read_text()
                    assert time.monotonic() < end, "the server does not begin"
                    time.sleep(0.02)
            between = Between(port)
            objects = Objects(port, between)
            if kind == "moto":
                objects.ask("PUT", "")
            yield objects
            between.close()
        finally:
            server.kill()
            server.wait()
