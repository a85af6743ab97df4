"""The metrics and the health of a server over HTTP.

==========  ========================================================================================
GET of      answer
==========  ========================================================================================
`/metrics`  the metrics, as Prometheus fetches them
`/healthz`  200: the event loop of this process has its turns
`/readyz`   200: clients can be sent here; 503 and why not, a line for each reason
==========  ========================================================================================

Served by the event loop as every other listener, with its limits and its address list; nobody logs
in, so whoever may connect reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from logweir.replication.httpconversation import Answer, HttpConversation
from logweir.replication.httpsession import Request, error_body
from logweir.replication.link import Link
from logweir.replication.listener import Service
from logweir.replication.metrics import Metrics

METRICS: Final = "metrics"
"""The scheme of its address, which is for the log and the status only."""

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_PLAIN: Final = "text/plain; charset=utf-8"


class MetricsService(Service):
    """The metrics port, for a `Listener`. `unready`: why clients should not be sent here."""

    def __init__(self, metrics: Metrics, unready: Callable[[], Sequence[str]] = tuple) -> None:
        self.metrics = metrics
        self._unready = unready
        self._pages = {
            "/metrics": lambda: Answer(200, self.metrics.render(), TEXT),
            "/healthz": lambda: Answer(200, b"alive\n", _PLAIN),
            "/readyz": self._readiness,
        }

    def begin(self, link: Link) -> HttpConversation:
        return HttpConversation(link, self.respond)

    async def respond(self, request: Request) -> Answer:
        """The answer to a request."""
        page = self._pages.get(request.target.partition("?")[0])
        if page is None:
            return Answer(404, error_body("NOT_FOUND", f"only {', '.join(self._pages)} are here"))
        if request.method != "GET":
            return Answer(405, error_body("METHOD_NOT_ALLOWED", "only GET is answered here"))
        return page()

    def _readiness(self) -> Answer:
        reasons = self._unready()
        if not reasons:
            return Answer(200, b"ready\n", _PLAIN)
        lines = (" ".join(one.split()) + "\n" for one in reasons)
        return Answer(503, "".join(lines).encode("utf-8", "backslashreplace"), _PLAIN)
