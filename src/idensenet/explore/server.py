"""The server of a page: on this machine alone, for whoever has its address."""

from __future__ import annotations

import hmac
import json
import secrets
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore
from urllib.parse import parse_qsl, urlsplit

from idensenet.errors import InputError
from idensenet.explore.explorer import Explorer
from idensenet.explore.page import page, policy

HOST = "127.0.0.1"
LONGEST = 2000  # characters of an address
WAITING = 16  # requests that may wait for an answer


class Server(ThreadingHTTPServer):
    """Answers requests for one model until it is stopped.

    A request must name this machine in its Host header, so that a page elsewhere cannot reach it under a name of its own, and
    its address must begin with a random word, which other users of the machine do not know.

    Args:
        explorer: Answers the questions.
        port: The port; 0 for any that is free.
    """

    daemon_threads = True

    def __init__(self, explorer: Explorer, port: int = 0) -> None:
        self.explorer = explorer
        self.token = secrets.token_urlsafe(16)
        self.page = page().encode()
        self.room = BoundedSemaphore(WAITING)
        super().__init__((HOST, port), Handler)

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def run(self) -> None:
        """Serve until Ctrl-C. An answer that is being computed is finished first, unless there is another Ctrl-C.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed twice, and an answer is still being computed.
        """
        try:
            self.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            self.server_close()
            if self.explorer.busy:
                print("\nFinishing an answer; Ctrl-C again ends at once.", flush=True)
            self.explorer.close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that leaves in the middle of an answer is not an error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "idensenet", ""
    timeout = 30

    def do_GET(self) -> None:
        """Send the page, or the answer to a question as JSON."""
        if not self._from_here():
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"This server answers on this machine alone.\n")
            return
        if len(self.path) > LONGEST:
            self._refuse(HTTPStatus.REQUEST_URI_TOO_LONG, f"An address has at most {LONGEST} characters.")
            return
        parts = urlsplit(self.path)
        words = parts.path.split("/")
        if len(words) != 3 or not hmac.compare_digest(words[1].encode(), self.server.token.encode()):
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"Open the address that 'idensenet explore' printed.\n")
        elif words[2] == "":
            self._send(HTTPStatus.OK, "text/html", self.server.page)
        elif not self.server.room.acquire(blocking=False):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"{WAITING} questions are waiting already; try again in a moment.")
        else:
            try:
                self._answer(words[2], parts.query)
            finally:
                self.server.room.release()

    def _from_here(self) -> bool:
        """Whether the request was meant for this machine, by the name that it uses."""
        names = [f"{name}:{self.server.server_port}" for name in (HOST, "localhost")]
        return self.headers.get_all("Host", []) in [[name] for name in names]

    def _answer(self, name: str, query: str) -> None:
        try:
            values = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=20, errors="strict"))
            content = json.dumps(self.server.explorer.answer(name, values), allow_nan=False)
        except InputError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except ValueError as error:  # of parse_qsl
            self._refuse(HTTPStatus.BAD_REQUEST, f"The parameters cannot be read: {error}")
        except (ArithmeticError, OSError) as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        else:
            self._send(HTTPStatus.OK, "application/json", content.encode())

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        self._send(status, "application/json", json.dumps({"error": sentence}).encode())

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", policy())
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing is written for a request."""
