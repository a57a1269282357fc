"""A small release in a folder, and an HTTP server that serves it with the faults of real ones."""

import hashlib
import http.server
import io
import pathlib
import tarfile
import threading

TARGET = "x86_64-unknown-linux-gnu"
# Incompressible, so that a half of the archive is a real half.
MODEL = hashlib.shake_256(b"weights").digest(200_000)


def program(version: str) -> bytes:
    """Returns a program that says its version."""
    return f"#!/bin/sh\necho nsbridge {version}\n".encode()


def files(version: str) -> dict[str, bytes]:
    """Returns the files of a version. Each version has one file that no other has."""
    return {
        "bin/nsbridge": program(version),
        "share/nsbridge/models/tale-1m/model.safetensors": MODEL,
        "share/man/man1/nsbridge.1": version.encode(),
        f"share/doc/nsbridge/only-in-{version}": b"",
    }


def archive(version: str, target: str, content: dict[str, bytes]) -> bytes:
    """Returns the archive of a version for a platform."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in content.items():
            entry = tarfile.TarInfo(f"nsbridge-{version}-{target}/{name}")
            entry.size = len(data)
            entry.mode = 0o755 if name.startswith("bin/") else 0o644
            entry.uid = entry.gid = 4321
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def write(folder: pathlib.Path, version: str, target: str = TARGET, content: dict[str, bytes] | None = None) -> str:
    """Writes the files of a release into a folder, and returns the archive's name."""
    name = f"nsbridge-{version}-{target}.tar.gz"
    data = archive(version, target, content or files(version))
    (folder / name).write_bytes(data)
    with (folder / "SHA256SUMS").open("a") as sums:
        sums.write(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
    return name


class Server:
    """An HTTP server of a folder. `faults` has what happens to the next requests for an archive, in order.

    The faults are `cut` (the connection ends in the middle of the body), `busy` (status 503) and `deny` (status
    403). `continues` is whether a request for the rest of a file gets it. `before_body` is called before a body.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.faults: list[str] = []
        self.ranges: list[str | None] = []
        self.continues = True
        self.before_body = lambda: None
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner._answer(self, folder)

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # A client that went away is no fault of the server.
        self.http.handle_error = lambda *_: None
        self.address = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def _answer(self, to: http.server.BaseHTTPRequestHandler, folder: pathlib.Path) -> None:
        path = folder / to.path.lstrip("/")
        if not path.is_file():
            return to.send_error(404)
        data = path.read_bytes()
        fault = self.faults.pop(0) if self.faults and path.suffix == ".gz" else None
        if fault in ("busy", "deny"):
            return to.send_error({"busy": 503, "deny": 403}[fault])
        first = self._first_byte(to, path)
        if first:
            to.send_response(206)
            to.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        else:
            to.send_response(200)
        rest = data[first:]
        to.send_header("Content-Length", str(len(rest)))
        to.end_headers()
        self.before_body()
        to.wfile.write(rest[: len(rest) // 2] if fault == "cut" else rest)

    def _first_byte(self, to: http.server.BaseHTTPRequestHandler, path: pathlib.Path) -> int:
        asked = to.headers.get("Range")
        if path.suffix == ".gz":
            self.ranges.append(asked)
        if asked is None or not self.continues:
            return 0
        return int(asked.removeprefix("bytes=").rstrip("-"))
