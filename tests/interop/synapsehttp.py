"""The `replication` listener over HTTP of a homeserver's process, for tests."""

from __future__ import annotations

import http.server
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Answer = Callable[[str, str, int, int], tuple[int, bytes]]
"""Of stream, writer, the tokens behind and up to which is asked: status and body."""


@contextmanager
def listening(answer: Answer) -> Iterator[str]:
    """A process that answers so; gives its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urllib.parse.urlsplit(self.path)
            asked = dict(urllib.parse.parse_qsl(parts.query))
            after, upto = int(asked["from_token"]), int(asked["upto_token"])
            stream = parts.path.split("/")[-2]
            status, data = answer(stream, asked["instance_name"], after, upto)
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
