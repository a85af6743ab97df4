"""Redis's protocol: what is written is read, in any portions; anything else is an error of ours."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from logweir.limits import REDIS_ARGUMENTS, REDIS_COMMAND_BYTES, REDIS_LINE_BYTES
from logweir.replication.redis.serve.cache import Cache
from logweir.replication.redis.serve.missed import Missed, Who
from logweir.replication.redis.server_session import Malformed, ServerSession
from logweir.replication.redis.wire.resp import Commands, bulk, vector

commands = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), max_size=6)
ANYTHING = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.sampled_from(
            [
                b"*",
                b"$",
                b"-",
                b"\r\n",
                b"\n",
                b"\r",
                b"0",
                b"1",
                b"3",
                b"99999999999",
                b"PING",
                b" ",
            ]
        ),
        max_size=60,
    ).map(b"".join),
)


def feed(data: bytes, sizes: list[int]) -> tuple[list[list[bytes]], str, Commands]:
    """Read data in portions of these sizes, and the rest at once."""
    reader, found, at = Commands(), [], 0
    for size in [*sizes, len(data)]:
        more, problem = reader.feed(data[at : at + size])
        found += more
        if problem:
            return found, problem, reader
        at += size
    return found, "", reader


sizes = st.lists(st.integers(1, 20), max_size=30)


@given(commands, sizes)
def test_commands_come_out_as_they_were_sent(sent: list[list[bytes]], portions: list[int]) -> None:
    """However they are cut."""
    data = b"".join(vector([bulk(part) for part in one]) for one in sent)
    found, problem, reader = feed(data, portions)
    assert (found, problem) == (sent, "")
    assert reader.kept_bytes == 0


@given(ANYTHING, sizes)
def test_portions_make_no_difference(data: bytes, portions: list[int]) -> None:
    """Nor is there ever anything but commands and a problem; what is kept came."""
    whole, whole_problem, _ = feed(data, [])
    found, problem, reader = feed(data, portions)
    assert (found, problem) == (whole, whole_problem)
    assert all(one for one in found)
    assert reader.kept_bytes <= 100 * len(data) + 100


@given(st.integers(0, 2**70), st.sampled_from([b"*%d\r\n", b"*1\r\n$%d\r\n", b"*-%d\r\n"]))
def test_announced_sizes_cost_nothing(number: int, form: bytes) -> None:
    """Above a limit they are refused; below, nothing is held before it has come."""
    found, problem, reader = feed(form % number, [])
    assert not found
    if not problem:
        assert number <= max(REDIS_ARGUMENTS, REDIS_COMMAND_BYTES) or form.startswith(b"*-")
        assert reader.kept_bytes == 0


def test_what_does_not_end_is_refused_at_its_limit() -> None:
    """A line, a number, and arguments that together are too much."""
    for data, least in ((b"x" * 1000, REDIS_LINE_BYTES), (b"*" + b"1" * 1000, 1)):
        session, taken = ServerSession(), 0
        while not (events := session.receive_data(data, 0.0)):
            taken += len(data)
            assert taken <= REDIS_LINE_BYTES
        assert taken >= least - len(data)
        assert isinstance(events[0], Malformed)
        assert session.receive_data(b"PING\r\n", 0.0) == ()
    reader = Commands()
    half = REDIS_COMMAND_BYTES // 2
    assert reader.feed(b"*3\r\n" + bulk(bytes(half))) == ([], "")
    assert reader.kept_bytes <= half + 100
    assert reader.feed(b"$%d\r\n" % (half + 1)) == ([], "invalid bulk length")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["get", "put", "remove"]),
            st.integers(0, 5),
            st.binary(max_size=300),
            st.integers(1, 4),
        ),
        max_size=60,
    )
)
def test_values_are_kept_until_they_end_or_make_way(
    steps: list[tuple[str, int, bytes, int]],
) -> None:
    """Never more than the limit; what is there is what was put last, and has not ended."""
    cache, model = Cache(limit_bytes=1000), {}
    for now, (what, number, value, lasts) in enumerate(steps):
        key = (0, b"%d" % number)
        if what == "put":
            cache.put(key, value, now + lasts)
            model[key] = (value, now + lasts)
        elif what == "remove":
            cache.remove(key)
            model.pop(key, None)
        found = cache.get(key, now)
        wanted, ends_at = model.get(key, (None, 0))
        assert found is None or (found == wanted and now < ends_at)
        assert 0 <= cache.size_bytes <= 1000
        if what == "put":
            assert found == value


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["publish"]), st.sampled_from([b"a", b"b"]), st.integers(0, 400)),
        st.tuples(
            st.sampled_from(["join", "leave", "forget"]),
            st.sampled_from([b"a", b"b"]),
            st.sampled_from([("u", b"n"), ("u", b"m"), ("v", b"n")]),
        ),
        st.tuples(st.sampled_from(["wait"]), st.just(b""), st.integers(1, 12)),
    ),
    max_size=60,
)


@example(
    [
        ("join", b"a", ("u", b"n")),
        ("leave", b"a", ("u", b"n")),
        ("wait", b"", 12),
        ("publish", b"a", 0),
    ]
)
@given(STEPS)
def test_what_is_missed_is_sent_again_or_told(steps: list[tuple[str, bytes, object]]) -> None:
    """Whatever comes and goes: messages in order, none twice, and each that is not sent was told as
    lost; within the bounds."""
    lost: dict[tuple[bytes, Who], int] = {}

    def lose(who: Who, channel: bytes, messages: int) -> None:
        assert messages > 0
        lost[channel, who] = lost.get((channel, who), 0) + messages

    limit = 1500
    missed = Missed(10.0, lose, limit_bytes=limit, limit_away=2)
    now = 0.0
    present: dict[tuple[bytes, Who], int] = {}
    waiting: dict[tuple[bytes, Who], list[bytes]] = {}
    for number, (step, channel, what) in enumerate(steps):
        if step == "wait":
            assert isinstance(what, int)
            now += what
        elif step == "publish":
            assert isinstance(what, int)
            message = b"%d:" % number + bytes(what)
            missed.publish(channel, message, now)
            for key, messages in waiting.items():
                if key[0] == channel and key in missed._away:  # else its time was over before
                    messages.append(message)
        else:
            assert isinstance(what, tuple)
            key = (channel, what)
            if step == "join":
                at, found = missed.join(channel, what, now), []
                assert at >= 0
                while (following := missed.after(channel, what, at)) is not None:
                    at = following[0]
                    found.append(following[1])
                before = waiting.pop(key, [])
                assert before == before[: lost.pop(key, 0)] + found
                present[key] = present.get(key, 0) + 1
            elif present.get(key):
                present[key] -= 1
                if step == "forget":
                    missed.forget(channel, what)
                elif not present[key]:
                    waiting[key] = []
                    missed.leave(channel, what, now)
                else:
                    missed.leave(channel, what, now)
        for key in waiting.keys() - missed._away.keys():  # forgotten
            assert lost.pop(key, 0) == len(waiting.pop(key))
        assert missed.size_bytes <= limit
