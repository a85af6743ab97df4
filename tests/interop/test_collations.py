"""Strings under ICU's collations in a real Tarantool and in ours: order, equality, every answer.

Both have the same version of ICU here. Not compared: the order of a HASH index, which is not
defined.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from support.icu import needs_icu
from support.waiting import until

from interop.rawclient import RawClient
from interop.realtarantool import RealTarantool
from interop.test_iproto_differential import shown
from interop.test_iproto_follow import copy, following, global_clock
from interop.test_values import fresh_space, orders
from interop.valuecases import array
from logweir.wal.mp import pack

pytestmark = [pytest.mark.tarantool, needs_icu]

# Accents, case, what one sign is in another language, several spellings of one text.
TEXT = """a A á Á a\u0301 A\u0301 ab aB Äpfel apfel Apfel ß ss SS ẞ i I ı İ i\u0307 I\u0307 z Z ё е
 е\u0308 Ж ж й и\u0306 日 本 日本 あ ア ｱ が か\u3099 각 \u1100\u1161\u11a8 ﬁ fi ǆ dž ch cz ll lz ñ
 n\u0303 å aa ö oe œ æ ø ạ\u0301 a\u0301\u0323 a\u0323\u0301 ẛ\u0323 क्ष א אָ لا ا เก กเ 𐐀 𐐨 Ⅷ VIII
 10 9 009 ９ ① ² 2 ½ a-b a_b a\u00adb 😀 👩\u200d👩\u200d👧 🇩🇪 \u0378 \U000e0080 \ufffd \ufffe
 \uffff \ufeff \U0010ffff \ue000 \u0301 \u0301a \u200b \u200da"""
ODD = ["", " ", "  ", "a b", "\0", "\0\0", "a\0", "a\0b", "\x01", "\x1f", "\x7f", "\t", "\n"]
LONG = ["x" * 3000, "x" * 3000 + "\u0301", "é" * 2000, "a\u0301\u0302" * 40]
WORDS = [*TEXT.split(), *ODD, *LONG]
NO_UTF8 = (
    *("ff", "80", "c3", "61c3", "61ff62", "eda080", "eda080edb080", "e282", "e08080"),
    *("f09f98", "f09f9861", "f8888080", "c080", "f4908080"),
)
SIGNS = (
    "aAzäÄåßsSiIıİéoøñ129 -.\u0301\u0308\u0323\u0307\0\x1f\u00ad\u200dёЖ日あ가א😀𐐀\u0378\ufffechlj"
)

MINE: dict[str, tuple[str, dict[str, str]]] = {
    "identical": ("", {"strength": "identical"}),
    "shifted": ("", {"strength": "quaternary", "alternate_handling": "shifted"}),
    "upper first": ("de", {"case_first": "upper_first"}),
    "case alone": ("", {"strength": "primary", "case_level": "on"}),
    "normal": ("vi", {"normalization_mode": "on"}),
    "french": (
        "fr",
        {"strength": "secondary", "french_collation": "on", "numeric_collation": "on"},
    ),
    "nowhere": ("nonsense", {}),
}
THEIRS = [
    *("unicode", "unicode_ci", "binary", "unicode_de__phonebook_s2", "unicode_sv_s1"),
    *("unicode_tr_s3", "unicode_ja_s3", "unicode_th_s2", "unicode_fr_CA_s3", "unicode_zh_s1"),
]


def string(raw: bytes) -> bytes:
    """A string of any bytes, as MsgPack."""
    return pack(raw.decode("utf-8", "surrogateescape"))


def strings(dice: random.Random, made: int) -> list[bytes]:
    """The words, bytes that are no UTF-8, and so many more, each as its bytes."""
    found = [word.encode() for word in WORDS] + list(map(bytes.fromhex, NO_UTF8))
    for number in range(made):
        if number % 4:
            text = "".join(dice.choices(SIGNS, k=dice.choice([1, 2, 3, 5, 40])))
        else:
            text = "".join(chr(dice.randrange(0xD800)) for _ in range(dice.randrange(1, 4)))
        found.append(text.encode())
    return found


@pytest.fixture(scope="module")
def mine(box: RealTarantool) -> None:
    """The collations of `MINE`, made in the shared Tarantool."""
    for name, (locale, options) in MINE.items():
        box.eval("box.internal.collation.create(...)", [name, "ICU", locale, options])


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("name", [*THEIRS, *MINE])
def test_strings_sort_and_are_equal_as_in_the_real_index(box: RealTarantool, name: str) -> None:
    """In a part of strings, and of any scalars: which are taken, and how the index iterates."""
    texts = [array(string(one)) for one in strings(random.Random(name), 200)]
    others = [array(pack(one)) for one in (1, True, b"a")]
    for kind, tuples in (("string", texts), ("scalar", [*texts[:100], *others])):
        space = fresh_space(box, f"{{1, '{kind}', collation = '{name}'}}", "sorted")
        real, ours = orders(box, space, tuples)
        assert ours == real


SETUP = """
box.schema.user.grant('guest', 'super')
box.internal.collation.create('mine', 'ICU', 'fr', {strength = 'secondary',
    french_collation = 'on', numeric_collation = 'on', alternate_handling = 'shifted'})
local number = 999
local function space(name)
    number = number + 1
    return box.schema.space.create(name, {id = number})
end
for _, name in ipairs{'unicode_ci', 'unicode_tr_s1', 'mine'} do
    for _, by in ipairs{'real', 'ours'} do
        local c = {1, 'string', collation = name}
        space('lone ' .. name .. by):create_index('p', {parts = {c}})
        local s = space('several ' .. name .. by)
        s:format{{'id', 'unsigned'}, {name = 's', type = 'string', collation = name}, {'m', 'any'}}
        s:create_index('p')
        s:create_index('only', {parts = {{2, 'string', collation = name}}})
        s:create_index('many', {unique = false,
            parts = {{2, 'string', collation = name}, {1, 'unsigned'}}})
        s:create_index('each', {unique = false,
            parts = {{3, 'string', collation = name, path = '[*]'}}})
        local h = space('hash ' .. name .. by)
        h:create_index('p', {type = 'hash', parts = {c}})
        h:create_index('pair', {type = 'hash', parts = {{2, 'scalar', collation = name}, c}})
        local m = space('mixed ' .. name .. by)
        m:create_index('p', {parts = {{1, 'string'}, {2, 'scalar', collation = name}}})
        m:create_index('s', {unique = false, parts = {{2, 'scalar', collation = name}}})
    end
end
"""
FIRST, KINDS, COLLATIONS = 1000, 4, 3
LONE, SEVERAL, HASH, MIXED = range(KINDS)
INDEXES = (1, 4, 2, 2)
SELECT, INSERT, REPLACE, UPDATE, DELETE, UPSERT = 1, 2, 3, 4, 5, 9
SPACE, INDEX, LIMIT, OFFSET, ITERATOR, KEY, TUPLE, OPS = 0x10, 0x11, 0x12, 0x13, 0x14, 0x20, 33, 40
AFTER_TUPLE, DATA, ALL = 0x2F, 0x30, 2


class Script:
    """Random requests to the spaces of `SETUP`, of strings that meet often."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.pool = strings(self.dice, 100)
        self.turn()

    def turn(self) -> None:
        """Take other strings from now on."""
        self.few = [string(one) for one in self.dice.sample(self.pool, 12)]

    def text(self) -> bytes:
        return self.dice.choice(self.few)

    def number(self) -> bytes:
        return pack(self.dice.randrange(30))

    def scalar(self) -> bytes:
        return pack(self.dice.choice([1, True])) if self.dice.random() < 0.1 else self.text()

    def row(self, kind: int) -> bytes:
        if kind == LONE:
            return array(self.text(), self.number())
        if kind == SEVERAL:
            several = [self.text() for _ in range(self.dice.randrange(3))]
            return array(self.number(), self.text(), array(*several))
        return array(self.text(), self.scalar())

    def key(self, kind: int, index: int) -> bytes:
        text, number, scalar = self.text(), self.number(), self.scalar()
        return array(
            *{
                LONE: ([text],),
                SEVERAL: ([number], [text], [text, number], [text]),
                HASH: ([text], [scalar, text]),
                MIXED: ([text, scalar], [scalar]),
            }[kind][index]
        )

    def operations(self, kind: int) -> bytes:
        field = self.dice.randrange(2)
        value = self.number() if (kind, field) in ((LONE, 1), (SEVERAL, 0)) else self.text()
        if self.dice.random() < 0.3:
            parts = [pack(":"), pack(field), pack(1), pack(1), self.text()]
        else:
            parts = [pack("="), pack(field), value]
        return array(array(*parts))

    def request(self) -> tuple[int, int, dict[int, bytes]]:
        """The type of a request, the number of its space, its body without that."""
        number = self.dice.randrange(KINDS * COLLATIONS)
        kind = number % KINDS
        asked = self.dice.choice([SELECT] * 3 + [INSERT, REPLACE, REPLACE, UPDATE, DELETE, UPSERT])
        if asked == SELECT:
            index = self.dice.randrange(INDEXES[kind])
            iterator = 0 if kind == HASH else self.dice.randrange(7)
            limit, offset = self.dice.choice([1, 3, 100]), self.dice.choice([0, 0, 1])
            body = {ITERATOR: pack(iterator), LIMIT: pack(limit), OFFSET: pack(offset)}
            return asked, number, body | {INDEX: pack(index), KEY: self.key(kind, index)}
        if asked in (INSERT, REPLACE):
            return asked, number, {TUPLE: self.row(kind)}
        if asked == UPSERT:
            return asked, number, {TUPLE: self.row(kind), OPS: self.operations(kind)}
        index = self.dice.randrange(2 if kind == SEVERAL else 1)
        body = {INDEX: pack(index), KEY: self.key(kind, index)}
        return asked, number, body | ({TUPLE: self.operations(kind)} if asked == UPDATE else {})


def space_of(number: int, by: int) -> int:
    """The id of a space that the real one writes, 0, or ours, 1."""
    collation, kind = divmod(number, KINDS)
    return FIRST + (collation * 2 + by) * KINDS + kind


def ask(client: RawClient, asked: int, space: int, body: dict[int, bytes]) -> tuple[int, Any]:
    """The data of an answer, or its error, which names no space."""
    parts = b"".join(pack(key) + value for key, value in body.items())
    head = bytes((0x81 + len(body),)) + pack(SPACE) + pack(space)
    code, what = shown(client.ask_raw(asked, head + parts))
    return code, what.removesuffix("real'").removesuffix("ours'") if code else what


def everything(client: RawClient, number: int, index: int, by: int) -> list[Any]:
    """All tuples of a space, in the order of an index where that is defined."""
    body = {INDEX: pack(index), ITERATOR: pack(ALL), LIMIT: pack(10**6), KEY: array()}
    code, rows = ask(client, SELECT, space_of(number, by), body)
    assert not code
    return sorted(rows, key=repr) if number % KINDS == HASH else rows


def pages(client: RawClient, number: int, by: int) -> list[Any]:
    """The same by the primary index, four at a time, each behind the last of those before."""
    found: list[Any] = []
    body = {ITERATOR: pack(ALL), LIMIT: pack(4), KEY: array()}
    while True:
        code, rows = ask(client, SELECT, space_of(number, by), body)
        assert not code
        if not rows:
            return found
        found += rows
        body[AFTER_TUPLE] = pack(rows[-1])


def test_every_answer_and_the_copies_are_those_of_the_real_one(tmp_path: Path) -> None:
    """Two masters that follow each other, of which each writes spaces of its own, by one script.
    Their answers are the same, and in the end both hold the same in all spaces, by each index."""
    script = Script(7)
    with RealTarantool(tmp_path / "real") as box:
        box.eval(SETUP)
        copy(box, tmp_path / "ours")
        options = {"guest": "all", "open_options": {"durability": "write"}}
        with following(tmp_path / "ours", box, **options) as serving:
            box.eval("box.cfg{replication = ...}", [f"127.0.0.1:{serving.port}"])
            assert box.port is not None
            codes = set()
            with RawClient(box.port) as real, RawClient(serving.port) as ours:
                for turn in range(1000):
                    if not turn % 70:
                        script.turn()
                    asked, number, body = script.request()
                    theirs = ask(real, asked, space_of(number, 0), body)
                    mine = ask(ours, asked, space_of(number, 1), body)
                    if asked == SELECT and number % KINDS == HASH and not mine[0]:
                        assert sorted(mine[1]) == sorted(theirs[1])
                    else:
                        assert mine == theirs, (turn, asked, number, body)
                    codes.add((asked, mine[0]))
                assert {(kind, 3) for kind in (INSERT, REPLACE, UPDATE)} <= codes
                assert {(UPDATE, 94), (UPDATE, 0), (DELETE, 0), (UPSERT, 0)} <= codes
                until(lambda: serving.log.vclock.without_local() == global_clock(box))
                for number in range(KINDS * COLLATIONS):
                    for index in range(INDEXES[number % KINDS]):
                        held = everything(real, number, index, 0)
                        for client, by in ((real, 1), (ours, 0), (ours, 1)):
                            assert everything(client, number, index, by) == held
                    if number % KINDS in (LONE, MIXED):
                        assert len(held) > 10
                        assert pages(ours, number, 0) == everything(real, number, 0, 0)
