"""Serving Redis's protocol: messages on channels, and values for a while.

=================================  =================================================================
command                            what is done
=================================  =================================================================
PING, ECHO, QUIT, RESET            as Redis
AUTH [user] password, HELLO        a user of the store; without a name the user `default`
SELECT                             16 databases of values; channels are those of all
CLIENT ID, SETNAME, GETNAME,       as Redis; SETINFO is taken and forgotten
SETINFO
SUBSCRIBE, UNSUBSCRIBE             needs read
PUBLISH                            needs write; is answered with how many it went to
PUBSUB CHANNELS, NUMSUB            needs read; patterns are those of a shell
GET, SET (EX, PX, NX, XX), DEL     needs read, and write; kept in memory (`cache`)
=================================  =================================================================

Rights are those on the space that the address names (`space=`), or on all spaces. A message goes to
those who are subscribed when it comes, in one order for all, and to who has a name and comes back
soon (`missed`; not as in Redis): it is sent what it missed first.

Source: Redis 7.0, observed, answer by answer (`tests/interop/test_redis_commands.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count
from typing import Final

from logweir.limits import (
    REDIS_CHANNELS,
    REDIS_DATABASES,
    REDIS_NAME_BYTES,
    REDIS_SUBSCRIBER_BYTES,
)
from logweir.replication.link import Link
from logweir.replication.logs import get_logger
from logweir.replication.redis.serve.cache import Cache
from logweir.replication.redis.serve.missed import MISSED_SECONDS, Missed, Who
from logweir.replication.redis.server_session import Malformed, ServerSession
from logweir.replication.redis.wire import resp
from logweir.replication.service.credentials import StoreCredentials
from logweir.replication.service.rights import Choice, Rights
from logweir.replication.service.shared import Shared
from logweir.replication.session import Parting
from logweir.store.schema.access import Privilege
from logweir.wal.writer import VERSION

_log = get_logger("logweir.replication.redis")

_DEFAULT_USER: Final = b"default"
_NO_AUTH: Final = "NOAUTH Authentication required."
_WRONG: Final = "WRONGPASS invalid username-password pair or user is disabled."
_SYNTAX: Final = "ERR syntax error"
_WHILE_SUBSCRIBED: Final = (
    "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
)
_EXPIRE_MAX: Final = 2**62 // 1000
_WHOLE_BYTES: Final = 20
_CHANNEL_BYTES: Final = 1024  # what a subscription costs beside the name, about


class RedisService:
    """The protocol, for a `Listener`. `space`: whose rights count, "" for all; `choice`: the
    channels that there are; `resend_seconds`: how long messages are kept for who is away."""

    def __init__(
        self,
        shared: Shared,
        *,
        space: str = "",
        choice: Choice | None = None,
        resend_seconds: float = MISSED_SECONDS,
    ) -> None:
        self.shared = shared
        self.space = space
        self.choice = choice or Choice()
        self.credentials = StoreCredentials(shared)
        self.cache = Cache()
        self.missed = Missed(resend_seconds, self._lost)
        self.resends = resend_seconds > 0
        self.channels: dict[bytes, dict[Conversation, None]] = {}
        self.numbers = count(1)

    def begin(self, link: Link) -> Conversation:
        """See `Service`."""
        return Conversation(self, link)

    def refusal(self, reason: str) -> bytes:
        """See `Service`."""
        return resp.error(f"ERR {reason}")

    def publish(
        self, channel: bytes, message: bytes, reached: set[Conversation], now: float
    ) -> int:
        """Give a message to all subscribers. Returns how many; they are added to `reached`, whose
        links are still to be flushed."""
        number = self.missed.publish(channel, message, now)
        subscribers = self.channels.get(channel)
        if not subscribers:
            return 0
        made = {version: _message(channel, message, version) for version in (2, 3)}
        found = 0
        for one in tuple(subscribers):
            if one.take(made, channel, number):
                reached.add(one)
                found += 1
        return found

    def _lost(self, who: Who, channel: bytes, messages: int) -> None:
        user, name = who
        self.shared.metrics.lost(messages)
        _log.warning(
            "redis.messages_lost",
            user=user,
            name=name.decode(),
            channel=channel.decode(errors="replace"),
            messages=messages,
        )


class _Refused(Exception):
    """What a command is answered with instead."""


@dataclass(slots=True, eq=False)
class _Place:
    """Of one subscription, until it is given up. `sent`: while it is sent what it missed, the last
    message of that."""

    channel: bytes
    who: Who
    sent: int | None = None


class Conversation:
    """One client."""

    def __init__(self, service: RedisService, link: Link) -> None:
        self.service = service
        self.link = link
        self.session = ServerSession()
        self._number = next(service.numbers)
        self._ahead: deque[list[bytes] | Malformed] = deque()
        self._rest: Iterator[None] | None = None  # of the command that is being done
        self._reached: set[Conversation] = set()
        self._channels: dict[bytes, _Place | None] = {}
        self._held_bytes = 0
        self._sent: deque[tuple[int, _Place, int]] = deque()  # to who has a name: up to which byte
        self._begin()

    def _begin(self) -> None:
        """As a new connection."""
        self._rights = Rights(self.service.shared, self.link.user)
        self._database = 0
        self._name = b""
        self.session.version = 2

    def handle(self, events: Sequence[list[bytes] | Malformed]) -> None:
        """See `Conversation` of `logweir.replication.link`."""
        self._ahead.extend(events)
        self._work()

    def _work(self) -> None:
        """Do what was asked for, until the others have their turn."""
        session, link = self.session, self.link
        turn = link.turn()
        done = failed = 0
        while (self._rest or self._ahead) and not session.close_reason:
            if turn.is_over(link.sent_bytes + session.waiting_bytes):
                link.go_on_later(self._work)
                break
            try:
                rest = self._rest or self._do(self._ahead.popleft())
                if isinstance(rest, bytes):
                    session.put(rest)
                    done += 1
                elif next(rest, True):
                    self._rest = None
                    done += 1
                else:
                    self._rest = rest
            except _Refused as refused:
                self._rest = None
                session.put(resp.error(str(refused)))
                failed += 1
        self.service.shared.metrics.answered(link.scheme, done, failed)
        reached, self._reached = self._reached, set()
        reached.discard(self)  # whose link is flushed in any case
        for one in reached:
            one.link.flush()
            _ = one.link.held_bytes  # looks at what it has taken: should it die, the rest is sent

    def closed(self, reason: str) -> None:
        """See `Conversation` of `logweir.replication.link`."""
        self._ahead.clear()
        self._rest = None
        self._leave_all(self._untaken(self.link.cut_bytes))

    def take(self, made: dict[int, bytes], channel: bytes, number: int) -> bool:
        """A message, by version, with its number. Returns whether it goes out."""
        link = self.link
        if not link.is_open or self.session.close_reason:
            untaken = {} if link.is_open else self._untaken(link.cut_bytes)
            self._leave_all({channel: number - 1} | untaken)
            return False
        if not self._may(Privilege.READ):
            self._leave_all({channel: number - 1})
            self.session.put(resp.error(self._denied()))
            self.session.end(f"{self._rights.user} may not read any more")
            link.flush()
            return False
        if link.unsent_bytes + self.session.waiting_bytes > REDIS_SUBSCRIBER_BYTES:
            self._leave_all({channel: number - 1} | self._untaken(link.unsent_bytes))
            link.abort(f"slow reader: {link.unsent_bytes} bytes of messages are unsent")
            return False
        if (place := self._channels[channel]) is None or place.sent is None:
            self._put_message(made[self.session.version], channel, number)
        return True

    def _put_message(self, made: bytes, channel: bytes, number: int) -> None:
        self.session.put(made)
        if (place := self._channels[channel]) is not None:
            taken = self.link.sent_bytes - self.link.unsent_bytes
            while self._sent and self._sent[0][0] <= taken:
                self._sent.popleft()
            end = self.link.sent_bytes + self.session.waiting_bytes
            self._sent.append((end, place, number))

    # --- one command ------------------------------------------------------------------------------

    def _do(self, command: list[bytes] | Malformed) -> bytes | Iterator[None]:
        """The answer, or what makes it in steps. Raises `_Refused`, as the steps do."""
        if isinstance(command, Malformed):
            self.session.refuse(command)
            return b""
        name, *words = command
        name = name.lower()
        if name in _CONTAINERS and words:
            name += b"|" + words[0].lower()
        known = _COMMANDS.get(name)
        if known is None:
            raise _unknown(command)
        least, most, act, is_always = known
        if not least <= len(command) - 1 <= most:
            raise _Refused(f"ERR wrong number of arguments for '{name.decode()}' command")
        if self._channels and not is_always and self.session.version == 2:
            raise _Refused(f"ERR Can't execute '{name.decode()}': {_WHILE_SUBSCRIBED}")
        return act(self, command)

    def _may(self, wanted: Privilege) -> bool:
        return self._rights.may(wanted, self.service.space)

    def _denied(self) -> str:
        if self._rights.user == "guest":
            return _NO_AUTH
        return f"NOPERM User {self._rights.user} has no permissions to do that here"

    def _need(self, wanted: Privilege) -> None:
        """Raises `_Refused`."""
        if not self._may(wanted):
            raise _Refused(self._denied())

    def _need_channel(self, wanted: Privilege, channel: bytes) -> None:
        """Raises `_Refused`."""
        self._need(wanted)
        if len(channel) > REDIS_NAME_BYTES:
            raise _Refused(f"ERR a name is longer than {REDIS_NAME_BYTES} bytes")
        if not self.service.choice.takes(channel.decode(errors="replace")):
            raise _Refused("NOPERM No permissions to access a channel")

    # --- who it is --------------------------------------------------------------------------------

    def _ping(self, command: list[bytes]) -> bytes:
        if self._channels and self.session.version == 2:
            return resp.vector([resp.bulk(b"pong"), resp.bulk(b"".join(command[1:]))])
        return resp.bulk(command[1]) if len(command) > 1 else b"+PONG\r\n"

    def _quit(self, command: list[bytes]) -> bytes:
        self.session.end(Parting("the client has quit"))
        return resp.OK

    def _reset(self, command: list[bytes]) -> bytes:
        for channel in tuple(self._channels):
            self._forget(channel)
        self._begin()
        return resp.simple("RESET")

    def _login(self, user: bytes, password: bytes) -> None:
        """Raises `_Refused`."""
        try:
            name, word = user.decode(), password.decode()
        except UnicodeDecodeError:
            raise _Refused(_WRONG) from None
        shared = self.service.shared
        if not self.service.credentials.check_password(name, word):
            if shared.logins.failed(self.link, name):
                self.session.end("logins failed")
            raise _Refused(_WRONG)
        self._rights = Rights(shared, name)
        self.link.know()

    def _auth(self, command: list[bytes]) -> bytes:
        if len(command) > 3:
            raise _Refused(_SYNTAX)
        self._login(command[1] if len(command) == 3 else _DEFAULT_USER, command[-1])
        return resp.OK

    def _hello(self, command: list[bytes]) -> bytes:
        version, words = self.session.version, deque(command[1:])
        if words:
            version = _whole(words.popleft(), "Protocol version")
            if version not in (2, 3):
                raise _Refused("NOPROTO unsupported protocol version")
        login, name = None, self._name
        while words:
            option = words.popleft()
            if option.lower() == b"auth" and len(words) >= 2:
                login = (words.popleft(), words.popleft())
            elif option.lower() == b"setname" and words:
                name = _client_name(words.popleft())
            else:
                shown = option[:128].decode(errors="replace")
                raise _Refused(f"ERR Syntax error in HELLO option '{shown}'")
        if login is not None:
            self._login(*login)
        self.session.version, self._name = version, name
        told = (
            ("server", resp.bulk(b"logweir")),
            ("version", resp.bulk(VERSION.encode())),
            ("proto", resp.integer(version)),
            ("id", resp.integer(self._number)),
            ("mode", resp.bulk(b"standalone")),
            ("role", resp.bulk(b"master")),
            ("modules", resp.vector(())),
        )
        return resp.mapping(told, version)

    def _select(self, command: list[bytes]) -> bytes:
        number = _whole(command[1])
        if not 0 <= number < REDIS_DATABASES:
            raise _Refused("ERR DB index is out of range")
        self._database = number
        return resp.OK

    def _client_id(self, command: list[bytes]) -> bytes:
        return resp.integer(self._number)

    def _client_name(self, command: list[bytes]) -> bytes:
        return self._value(self._name or None)

    def _client_rename(self, command: list[bytes]) -> bytes:
        self._name = _client_name(command[2])
        return resp.OK

    def _value(self, data: bytes | None) -> bytes:
        return resp.NIL[self.session.version] if data is None else resp.bulk(data)

    # --- channels ---------------------------------------------------------------------------------

    def _subscribe(self, command: list[bytes]) -> Iterator[None]:
        for channel in command[1:]:
            self._need_channel(Privilege.READ, channel)
        who = (self._rights.user, self._name) if self._name and self.service.resends else None
        for channel in command[1:]:
            is_new = channel not in self._channels
            if is_new:
                if len(self._channels) >= REDIS_CHANNELS:
                    raise _Refused(f"ERR more than {REDIS_CHANNELS} channels")
                self._channels[channel] = None if who is None else _Place(channel, who)
                self.service.channels.setdefault(channel, {})[self] = None
                self._count(len(channel) + _CHANNEL_BYTES)
            self._tell(b"subscribe", resp.bulk(channel))
            if is_new and (place := self._channels[channel]) is not None:
                yield from self._resend(place)

    def _resend(self, place: _Place) -> Iterator[None]:
        """Send what somebody missed, who has just subscribed, a message at a step. What comes
        meanwhile is sent behind it, from where it is kept."""
        missed, channel = self.service.missed, place.channel
        place.sent = missed.join(channel, place.who, self.link.time())
        while (found := missed.after(channel, place.who, place.sent)) is not None:
            place.sent, message = found
            self.service.shared.metrics.resent(1)
            self._put_message(_message(channel, message, self.session.version), channel, place.sent)
            yield
        place.sent = None

    def _unsubscribe(self, command: list[bytes]) -> bytes:
        channels = command[1:] or list(self._channels)
        for channel in channels:
            self._forget(channel)
            self._tell(b"unsubscribe", resp.bulk(channel))
        if not channels:
            self._tell(b"unsubscribe", self._value(None))
        return b""

    def _tell(self, what: bytes, channel: bytes) -> None:
        parts = (resp.bulk(what), channel, resp.integer(len(self._channels)))
        self.session.put(resp.push(parts, self.session.version))

    def _forget(self, channel: bytes) -> None:
        """Want no more of a channel."""
        if (place := self._leave(channel)) is not None:
            self.service.missed.forget(channel, place.who)

    def _leave(self, channel: bytes) -> _Place | None:
        """Returns the place there."""
        if channel not in self._channels:
            return None
        subscribers = self.service.channels[channel]
        del subscribers[self]
        if not subscribers:
            del self.service.channels[channel]
        self._count(-len(channel) - _CHANNEL_BYTES)
        return self._channels.pop(channel)

    def _count(self, size_bytes: int) -> None:
        """So much more is held for the subscriptions."""
        self._held_bytes += size_bytes
        self.link.hold_beside(self._held_bytes)

    def _leave_all(self, sent: Mapping[bytes, int]) -> None:
        """The connection ends. `sent`: the last message of a channel that was sent, where that is
        not the newest."""
        for channel in tuple(self._channels):
            if (place := self._leave(channel)) is not None:
                number = sent.get(channel, place.sent)
                if number is not None and place.sent is not None:
                    number = min(number, place.sent)
                self.service.missed.leave(channel, place.who, self.link.time(), number)

    def _untaken(self, unsent_bytes: int) -> dict[bytes, int]:
        """By channel the last message before those that the client has not taken, of which so many
        bytes were handed to its connection."""
        taken = self.link.sent_bytes - unsent_bytes
        found: dict[bytes, int] = {}
        for end, place, number in self._sent:
            if end > taken and self._channels.get(place.channel) is place:
                found.setdefault(place.channel, number - 1)
        return found

    def _publish(self, command: list[bytes]) -> bytes:
        self._need_channel(Privilege.WRITE, command[1])
        number = self.service.publish(command[1], command[2], self._reached, self.link.time())
        return resp.integer(number)

    def _pubsub_channels(self, command: list[bytes]) -> bytes:
        self._need(Privilege.READ)
        pattern = command[2] if len(command) > 2 else b"*"
        found = [one for one in self.service.channels if fnmatchcase(one, pattern)]
        return resp.vector([resp.bulk(one) for one in found])

    def _pubsub_numbers(self, command: list[bytes]) -> bytes:
        self._need(Privilege.READ)
        found: list[bytes] = []
        for one in command[2:]:
            found += (resp.bulk(one), resp.integer(len(self.service.channels.get(one, ()))))
        return resp.vector(found)

    # --- values -----------------------------------------------------------------------------------

    def _get(self, command: list[bytes]) -> bytes:
        self._need(Privilege.READ)
        return self._value(self.service.cache.get((self._database, command[1]), self.link.time()))

    def _set(self, command: list[bytes]) -> bytes:
        self._need(Privilege.WRITE)
        key, now = (self._database, command[1]), self.link.time()
        ends_at, condition = float("inf"), b""
        words = deque(command[3:])
        while words:
            option = words.popleft().lower()
            if option in (b"ex", b"px") and words and ends_at == float("inf"):
                number = _whole(words.popleft())
                if not 0 < number < _EXPIRE_MAX:
                    raise _Refused("ERR invalid expire time in 'set' command")
                ends_at = now + (number if option == b"ex" else number / 1000)
            elif option in (b"nx", b"xx") and condition in (b"", option):
                condition = option
            else:
                raise _Refused(_SYNTAX)
        cache = self.service.cache
        if condition and (cache.get(key, now) is None) is (condition == b"xx"):
            return self._value(None)
        cache.put(key, command[2], ends_at)
        return resp.OK

    def _del(self, command: list[bytes]) -> bytes:
        self._need(Privilege.WRITE)
        cache, now, number = self.service.cache, self.link.time(), 0
        for name in command[1:]:
            key = (self._database, name)
            number += cache.get(key, now) is not None
            cache.remove(key)
        return resp.integer(number)


def _message(channel: bytes, message: bytes, version: int) -> bytes:
    return resp.push((resp.bulk(b"message"), resp.bulk(channel), resp.bulk(message)), version)


def _whole(text: bytes, what: str = "value") -> int:
    """Raises `_Refused`."""
    if len(text) <= _WHOLE_BYTES and text.removeprefix(b"-").isdigit():
        number = int(text)
        if b"%d" % number == text and -(2**63) <= number < 2**63:
            return number
    raise _Refused(f"ERR {what} is not an integer or out of range")


def _client_name(name: bytes) -> bytes:
    """Raises `_Refused`."""
    if len(name) > REDIS_NAME_BYTES or any(not 33 <= letter <= 126 for letter in name):
        raise _Refused("ERR Client names cannot contain spaces, newlines or special characters.")
    return name


def _unknown(command: list[bytes]) -> _Refused:
    name, *words = [one[:128].decode(errors="replace") for one in command[:9]]
    if name.lower().encode() not in _CONTAINERS:
        shown = "".join(f"'{word}' " for word in words)
        return _Refused(f"ERR unknown command '{name}', with args beginning with: {shown}")
    if not words:
        return _Refused(f"ERR wrong number of arguments for '{name.lower()}' command")
    return _Refused(f"ERR unknown subcommand '{words[0]}'. Try {name.upper()} HELP.")


_CONTAINERS: Final = (b"client", b"pubsub")
_ANY: Final = 2**31
_Act = Callable[[Conversation, list[bytes]], bytes | Iterator[None]]
_COMMANDS: Final[dict[bytes, tuple[int, int, _Act, bool]]] = {
    b"ping": (0, 1, Conversation._ping, True),
    b"echo": (1, 1, lambda client, command: resp.bulk(command[1]), False),
    b"quit": (0, _ANY, Conversation._quit, True),
    b"reset": (0, 0, Conversation._reset, True),
    b"auth": (1, _ANY, Conversation._auth, False),
    b"hello": (0, _ANY, Conversation._hello, False),
    b"select": (1, 1, Conversation._select, False),
    b"client|id": (1, 1, Conversation._client_id, False),
    b"client|getname": (1, 1, Conversation._client_name, False),
    b"client|setname": (2, 2, Conversation._client_rename, False),
    b"client|setinfo": (3, 3, lambda client, command: resp.OK, False),
    b"subscribe": (1, _ANY, Conversation._subscribe, True),
    b"unsubscribe": (0, _ANY, Conversation._unsubscribe, True),
    b"publish": (2, 2, Conversation._publish, False),
    b"pubsub|channels": (1, 2, Conversation._pubsub_channels, False),
    b"pubsub|numsub": (1, _ANY, Conversation._pubsub_numbers, False),
    b"get": (1, 1, Conversation._get, False),
    b"set": (2, _ANY, Conversation._set, False),
    b"del": (1, _ANY, Conversation._del, False),
}
"""By name: how many arguments at least and at most, what does it, whether subscribers may, too."""
