"""A bucket here that is filled from a server: what its sources have in common."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
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
from logweir.store.commit.jobs import Job


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


class SeenKeys:
    """The keys that came in a snapshot: what is not among them is gone at the upstream. A set that
    takes 8 bytes for each: their hashes. Ask only after all were added."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._hashes = array("Q")
        self._is_sorted = False

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, key: bytes) -> None:
        """Note a key."""
        self._hashes.append(self._hash(key))
        self._is_sorted = False

    def __contains__(self, key: bytes) -> bool:
        if not self._is_sorted:
            self._hashes = array("Q", sorted(self._hashes))
            self._is_sorted = True
        wanted = self._hash(key)
        place = bisect_left(self._hashes, wanted)
        return place < len(self._hashes) and self._hashes[place] == wanted

    def _hash(self, key: bytes) -> int:
        digest = hashlib.blake2b(key, digest_size=8, key=self._salt).digest()
        return int.from_bytes(digest, "little")
