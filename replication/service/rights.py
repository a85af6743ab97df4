"""What the peer of one connection may do with the spaces of a store, and what an address shows.

Who the peer is: the user that its connection names (`Link.user`), else guest; a login makes it
another one. Grants are read again whenever they have changed, so what is taken back is gone at the
next question, also on open connections. A user that was dropped may do nothing.

A listener's address may show less than the grants allow: `topics=` (Tank) and `streams=` (Synapse)
are names, or patterns with `*`, `?` and `[…]`, with commas between them. What none of them fits is
not there for any client of that listener, whatever it may do elsewhere; in an upstream's address
(`streams=`) it is not followed.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

from logweir.errors import ConfigError, RequestError
from logweir.replication.service.shared import Shared
from logweir.replication.service.users import PRIVILEGES
from logweir.replication.urls import Url, option_names
from logweir.store.schema.access import ADMIN_ID, GUEST_ID, PUBLIC_ID, Privilege


class Choice:
    """The names that an address chooses: those that fit a pattern; all if there is none."""

    def __init__(self, patterns: tuple[str, ...] = ()) -> None:
        self._patterns = patterns

    @classmethod
    def of(cls, url: Url, option: str) -> Choice:
        """The one that an address makes. Raises `ConfigError` if it fits nothing."""
        patterns = tuple(option_names(url, option))
        if not patterns and option in dict(url.options):
            hint = f"name what is shown, as in {option}=orders,log-*; without it everything is"
            raise ConfigError(option, f"names nothing in {url}", hint=hint)
        return cls(patterns)

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return not self._patterns

    def takes(self, name: str) -> bool:
        """Whether it shows that name."""
        return not self._patterns or any(fnmatchcase(name, one) for one in self._patterns)


_OPENS: Final = [one for one in PRIVILEGES if one not in ("session", "usage")]


class StoreUsers:
    """The users of a store as a listener asks for them."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def knows(self, name: str) -> bool:
        """Whether there is a user of that name."""
        try:
            self._shared.user(name)
        except RequestError:
            return False
        return True

    def guest_may(self) -> str:
        """What guest may do, beyond what the role `public` may, in words; "" for nothing."""
        directory = self._shared.directory
        bits, reached, ahead = 0, {GUEST_ID, PUBLIC_ID}, [GUEST_ID]
        while ahead:
            for grant in directory.grants(ahead.pop()):
                if grant.object_type != "role":
                    bits |= grant.bits
                elif grant.object_id not in reached:
                    reached.add(int(grant.object_id))
                    ahead.append(int(grant.object_id))
        return ", ".join(name for name in _OPENS if bits & PRIVILEGES[name])


class Rights:
    """What one connection may do now. `user`: who it is known to be, "" for guest."""

    def __init__(self, shared: Shared, user: str = "") -> None:
        self._shared = shared
        self.user = user or "guest"
        self.user_id = shared.user_id(user)

    @property
    def owner_id(self) -> int:
        """Who owns what is made: what guest makes is admin's, so that guest keeps nothing that was
        not granted."""
        return ADMIN_ID if self.user_id == GUEST_ID else self.user_id

    def may(self, wanted: Privilege, space: int | str) -> bool:
        """Whether it has `wanted` on a space, by id or name; on all, if there is none of that."""
        return self._shared.may(self.user_id, space, wanted)

    def may_all(self, wanted: Privilege) -> bool:
        """Whether it has `wanted` on everything there is."""
        try:
            self._shared.access(self.user_id).check_universe(wanted)
        except RequestError:
            return False
        return True
