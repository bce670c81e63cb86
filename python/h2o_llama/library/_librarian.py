"""The librarian of `h2o-llama serve`: a process next to llama-server which keeps the texts that its slots have read.

It answers HTTP at a Unix-domain socket. A message either way is a line of JSON, then bytes: src/server/librarian.h. It
ends with the server, when all that it was given is written.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import warnings
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_llama._internal.apart import python_command, python_environment
from h2o_llama._internal.check import INT32_MAX
from h2o_llama._internal.terminal import echo, warn
from h2o_llama.errors import BusyError, H2OError, H2OWarning
from h2o_llama.library._library import LEAST_NEW, LEAST_TOKENS, MARKS, NAME_TOKENS, Library
from h2o_llama.library._texts import name_of
from h2o_llama.sequence.snapshot import Snapshot, SnapshotOrigin

_SOCKET = "H2O_LLAMA_LIBRARIAN"
"""What names the socket in llama-server's environment."""

_ID = re.compile("[0-9a-f]{24}")
_SETTINGS = {"n_least": LEAST_TOKENS, "n_new": LEAST_NEW, "n_name": NAME_TOKENS, "marks": MARKS}
_PREFIX, _NAME = "h2o-llama-", "librarian"
"""Of the folder of a librarian among temporary files, and of the socket in it."""

_WAITING = 64
"""Requests that wait until they are accepted."""


def start_librarian(folder: Path, origin: SnapshotOrigin) -> None:
    """Start one for this process, also after an `exec`. Its library is in `folder`.

    Raises OSError if there can be none.
    """
    _remove_dead()
    work = Path(tempfile.mkdtemp(prefix=_PREFIX))  # for this user alone
    try:
        path = work / _NAME
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{path}.new")
            listener.listen(_WAITING)
            os.rename(f"{path}.new", path)  # under this name it refuses only when it is dead
            given = {
                "folder": str(folder.absolute()),
                "origin": origin.to_json(),
                "parent": os.getpid(),
                "fd": listener.fileno(),
            }
            process = subprocess.Popen(
                python_command(__name__, str(work)),
                env=python_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,  # Ctrl-C is for the server
            )
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps(given).encode())
    except BaseException:
        shutil.rmtree(work)
        raise
    process.returncode = 0  # it outlives this object
    os.environ[_SOCKET] = str(path)


def _remove_dead() -> None:
    """What librarians of this user have left that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_NAME}"):
        try:
            if path.parent.is_symlink() or not path.is_socket():
                continue
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1)
                connection.connect(str(path))
        except ConnectionRefusedError:
            with suppress(OSError):
                path.unlink()
                path.parent.rmdir()
        except OSError:  # busy, or somebody else's
            continue


class Librarian:
    """The library of one model and its settings, one part for each API key: nobody is given the text of another one."""

    def __init__(self, folder: Path, origin: SnapshotOrigin) -> None:
        self._folder = folder
        self.origin = origin
        self._libraries: dict[str, Library] = {}
        self._opening = threading.Lock()

    def library(self, key: str) -> Library:
        """That of a key. Without one it is what the user's other programs have."""
        with self._opening:
            if key not in self._libraries:
                name = hashlib.sha256(key.encode()).hexdigest()[:32]
                self._libraries[key] = Library(self._folder).of_owner(name if key else "")
            return self._libraries[key]

    def give(self, about: dict[str, Any], tokens: NDArray[np.int32], state: bytes) -> None:
        """Write a text, and wait until that is done."""
        points = [(int(first), int(last)) for first, last in about["points"]]
        library = self.library(about["key"])
        library.add(Snapshot(self.origin, tokens, None, state), about["rows"], points, name_of(about["begin"]))
        library.flush()


def _listing(library: Library) -> dict[str, Any]:
    """What GET /h2o/library answers."""
    texts = [
        {
            "id": text.id,
            "name": text.name,
            "n_tokens": text.n_tokens,
            "n_bytes": text.n_bytes,
            "used": text.used.astimezone().isoformat(timespec="seconds"),
        }
        for text in library.texts()
    ]
    return {"n_bytes": library.n_bytes, "limit_bytes": library.limit_bytes, "texts": texts}


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        line = self.rfile.readline()
        n_bytes = int(self.headers["Content-Length"]) - len(line)
        try:
            status, answer, content = self._answer(json.loads(line), n_bytes)
        except EOFError:
            return  # the server was killed
        except BusyError as error:
            status, answer, content = _error(503, "unavailable_error", error)
        except (H2OError, OSError, ValueError, MemoryError) as error:
            warn(f"{error}")
            status, answer, content = _error(500, "server_error", error)
        head = json.dumps(answer).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(head) + sum(map(len, content))))
        self.send_header("Connection", "close")
        self.end_headers()
        for part in (head, *content):
            self.wfile.write(part)

    def _answer(self, about: Any, n_bytes: int) -> tuple[int, Any, list[bytes]]:
        if self.path == "/settings":
            return 200, _SETTINGS, []
        librarian = self.server.librarian
        library, origin = librarian.library(about["key"]), librarian.origin
        if self.path == "/list":
            return 200, _listing(library), []
        if self.path == "/remove":
            with suppress(ValueError):  # by its whole id
                if _ID.fullmatch(about["id"]) and library.remove(about["id"]) > 0:
                    return 200, {"success": True}, []
            return _error(404, "not_found_error", f"there is no text {about['id']!r:.40}: GET /h2o/library lists them")
        if self.path == "/is-new":  # whether there is enough in a text that could not be taken
            tokens = _tokens(self.rfile, n_bytes)
            found = library.find(origin, tokens, INT32_MAX)
            return 200, {"is_new": found is None or found.n_tokens + LEAST_NEW <= len(tokens)}, []
        if self.path == "/take":  # the text that shares most tokens with a prompt, if a slot can hold it
            snapshot = library.take(origin, _tokens(self.rfile, n_bytes), about["n_ctx"], about["n_least"])
            if snapshot is None:
                return 200, {"n_tokens": 0}, []
            ids = snapshot.tokens.astype("<i4").tobytes()
            return 200, {"n_tokens": snapshot.n_tokens}, [ids, snapshot.state]
        n = 4 * about["n_tokens"]
        librarian.give(about, _tokens(self.rfile, n), _read(self.rfile, n_bytes - n))
        return 200, {}, []

    def log_message(self, *arguments: Any) -> None:
        """Nothing is logged but problems."""


def _error(status: int, kind: str, message: object) -> tuple[int, Any, list[bytes]]:
    text = str(message) or "there is not enough memory"
    return status, {"error": {"code": status, "message": text, "type": kind}}, []


def _read(file: BufferedIOBase, n: int) -> bytes:
    content = file.read(n)
    if len(content) < n:
        raise EOFError
    return content


def _tokens(file: BufferedIOBase, n: int) -> NDArray[np.int32]:
    return np.frombuffer(_read(file, n), dtype="<i4").astype(np.int32)


class _Server(socketserver.ThreadingUnixStreamServer):
    timeout = 0.5

    def __init__(self, listener: socket.socket, librarian: Librarian) -> None:
        super().__init__(listener.getsockname(), _Requests, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.librarian = librarian

    def handle_error(self, *request: Any) -> None:
        """Not where llama-server was killed and waits for no answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(*request)


def main() -> None:
    """What the process does: its only argument is its folder, the rest is in standard input."""
    warnings.showwarning = lambda message, *_: echo(f"h2o-llama: {message}", err=True)
    warnings.simplefilter("always", H2OWarning)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # when all that it was given is written
    try:
        given = json.load(sys.stdin)
        librarian = Librarian(Path(given["folder"]), SnapshotOrigin.from_json(given["origin"]))
        with _Server(socket.socket(fileno=given["fd"]), librarian) as server:
            while os.getppid() == given["parent"]:  # llama-server may be killed
                server.handle_request()
    finally:
        shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
