"""The topics of a store as one client may see them.

docs/users.md says which rights are needed for what. What the listener's choice does not take is
unknown, and cannot be made. Tank has no word for "not allowed": what is refused gets the outcome
that clients know; with write alone a partition is unreadable, with read alone a topic is read-only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace

from logweir.replication.service.rights import Choice, Rights
from logweir.replication.tank.wire.messages import (
    Create,
    CreateError,
    Fetch,
    Partitions,
    ReloadError,
)
from logweir.replication.topic.consumers import KEPT_PREFIXES, topic_of
from logweir.replication.topic.partition import Chunk, ClientTopics, Extent
from logweir.replication.topic.spaces import CONSUMER_SPACE
from logweir.replication.topic.views import LOG_VIEW, SPACE_PREFIX, is_view
from logweir.store.schema.access import Privilege


class ShownTopics:
    """See the module's text. Implements `logweir.replication.topic.partition.ClientTopics`."""

    def __init__(self, topics: ClientTopics, rights: Rights, choice: Choice) -> None:
        self._topics = topics
        self._rights = rights
        self._choice = choice

    def _may_read(self, topic: str) -> bool:
        name = topic_of(topic)
        if not self._choice.takes(name):
            return False
        if self._topics.is_topic(name) or not is_view(name):
            return self._rights.may(Privilege.READ, name)
        if name == LOG_VIEW:
            return self._rights.may_all(Privilege.READ)
        return self._rights.may(Privilege.READ, name.removeprefix(SPACE_PREFIX))

    def _may_write(self, topic: str) -> bool:
        if topic.startswith(KEPT_PREFIXES):
            return self._may_read(topic) and self._rights.may(Privilege.WRITE, CONSUMER_SPACE)
        return self._choice.takes(topic) and self._rights.may(Privilege.WRITE, topic)

    @property
    def read_only(self) -> bool:
        return self._topics.read_only

    def is_topic(self, name: str) -> bool:
        return self._topics.is_topic(name)

    def partitions(self, topic: str) -> int | None:
        is_known = self._may_read(topic) or self._may_write(topic)
        return self._topics.partitions(topic) if is_known else None

    def writable(self, topic: str) -> bool:
        return self._may_write(topic) and self._topics.writable(topic)

    def creatable(self, topic: str) -> bool:
        is_chosen = self._choice.takes(topic) and self._rights.may(Privilege.CREATE, -1)
        return is_chosen and self._topics.creatable(topic)

    def extent(self, topic: str, partition: int) -> Extent | None:
        return self._topics.extent(topic, partition) if self._may_read(topic) else None

    def read(self, topic: str, partition: int, start: int, limit_bytes: int) -> Chunk | None:
        if not self._may_read(topic):
            return None
        return self._topics.read(topic, partition, start, limit_bytes)

    def topics(self) -> Sequence[tuple[str, bool, int]]:
        return [one for one in self._topics.topics() if self.partitions(one[0]) is not None]

    def reload(self, topic: str, partition: int) -> ReloadError:
        return self._topics.reload(topic, partition)

    def opening(self) -> tuple[int, int, int]:
        in_use, took_ms, started = self._topics.opening()
        return min(in_use, sum(count for _, _, count in self.topics())), took_ms, started

    def prepare(self, request: object) -> Awaitable[object] | None:
        """See `ClientTopics`: nothing is made ready that the client may not read."""
        if isinstance(request, Fetch):
            shown = tuple(one for one in request.topics if self._may_read(one[0]))
            if len(shown) < len(request.topics):
                request = replace(request, topics=shown)
        elif isinstance(request, Partitions) and not self._may_read(request.topic):
            return None
        return self._topics.prepare(request)

    def create_from(self, request: Create, owner: int | None = None) -> Awaitable[CreateError]:
        """See `ClientTopics`. `owner`: not asked for; it is the client's user."""
        return self._topics.create_from(request, self._rights.owner_id)
