"""Which keys of a bucket came in a snapshot: what is not among them is gone at the upstream."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left


class SeenKeys:
    """A set of keys that takes 8 bytes for each: their hashes. Ask only after all were added."""

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
