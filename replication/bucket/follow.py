"""A bucket here that is filled from a server: what its sources have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from logweir.replication.bucket.address import bucket_of
from logweir.replication.bucket.store import Bucket, Buckets, GroupItems
from logweir.replication.runner import UrlSource
from logweir.replication.service.names import local_name
from logweir.replication.service.shared import Shared
from logweir.replication.stream import positions
from logweir.replication.urls import Url
from logweir.store.commit.group import Group
from logweir.store.commit.queue import Job


class BucketSource(UrlSource):
    """A `Source` of one bucket. `shared`: our own server's state; `name`: what the server knows us
    by; `divides`: see `GroupItems`. Raises `ConfigError`."""

    divides: ClassVar[bool] = True

    def __init__(self, shared: Shared, url: Url) -> None:
        super().__init__(url)
        self._shared = shared
        self._local = local_name(url.option("name"), bucket_of(url))
        self._buckets = Buckets(shared.log, shared.options.clock)
        self.name = f"logweir-{shared.log.instance}".encode()

    def fill(self) -> Bucket:
        """The bucket here, and the spaces of positions, made if need be. Raises `SourceStopped`."""
        bucket = self._buckets.fill(self._local)
        positions.make_spaces(self._shared.log)
        return bucket

    async def apply(
        self, bucket: Bucket, work: Callable[[GroupItems, Group], None], size: int
    ) -> None:
        """Do `work` as one transaction; returns when it is durable."""
        now = self._shared.options.clock

        def apply(group: Group) -> None:
            items = GroupItems(bucket, group, now())
            items.divides = self.divides
            work(items, group)

        await self._shared.run(Job(apply, size))

    def position(self, stream: str, bucket: str) -> Mapping[str, Any]:
        """The tokens that were noted last, none if there is no position yet."""
        return positions.position(self._shared.log, self.url, stream, bucket) or {}

    def put_position(
        self, group: Group, stream: str, bucket: Bucket, tokens: Mapping[str, object]
    ) -> None:
        """Note a position in the open transaction."""
        time_ms = int(self._shared.options.clock() * 1000)
        positions.put_position(group, self.url, stream, bucket.name, tokens, time_ms)
