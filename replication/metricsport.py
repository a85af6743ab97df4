"""The metrics of a server over HTTP, as Prometheus fetches them: GET of `/metrics`.

Served by the event loop as every other listener, with its limits and its address list; nobody logs
in, so whoever may connect reads them.
"""

from __future__ import annotations

from typing import Final

from logweir.replication.httpconversation import Answer, HttpConversation
from logweir.replication.httpsession import Request, error_body
from logweir.replication.link import Link
from logweir.replication.metrics import Metrics

__all__ = ["METRICS", "MetricsService"]

METRICS: Final = "metrics"
"""The scheme of its address, which is for the log and the status only."""

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class MetricsService:
    """The metrics port, for a `Listener`."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def begin(self, link: Link) -> HttpConversation:
        """See `logweir.replication.listener.Service`."""
        return HttpConversation(link, self.respond)

    def refusal(self, reason: str) -> bytes:
        """See `logweir.replication.listener.Service`: just closed."""
        del reason
        return b""

    def respond(self, request: Request) -> Answer:
        """The answer to a request."""
        if request.target.partition("?")[0] != "/metrics":
            return Answer(404, error_body("NOT_FOUND", "only /metrics is here"))
        if request.method != "GET":
            return Answer(405, error_body("METHOD_NOT_ALLOWED", "only GET is answered here"))
        return Answer(200, self.metrics.render(), TEXT)
