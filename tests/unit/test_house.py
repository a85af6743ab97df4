"""The rules of the house: who may import whom, how large things get, what must not be in the tree.

Each check is a function from a tree of files to complaints, so that it can be fed a bad tree.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from support.dealing import LONG
from support.rooms import ROOMS, rooms_of

ROOT = Path(__file__).resolve().parents[2]

FLOORS: dict[str, float] = {
    "compiled": 0,
    "errors": 0,
    "lazy": 0,
    "limits": 0,
    "wal": 1,
    "recovery": 2,
    "store": 3,
    "replication": 4,
    "pipeline": 4.2,  # beside replication, but for the clients that reach running servers
    "archive": 4.3,  # reaches places as the pipeline does
    "tools": 5,
    "testing": 6,
    "__main__": 7,
}
FACE = 4.5
"""Floor of the package's own `__init__` and what else stands at the root: below `tools` only."""

FILE_LINES = 600
LONG_FILES = {
    # Their loops call one another as C functions, which a compiler sees only within one file.
    "replication/synapse/wire/kernel.py",
    "replication/synapse/wire/linekernel.py",
    "wal/kernel.py",
}
"""May be longer than `FILE_LINES`, up to 800."""
GENERATED = {"docs/api.md", "docs/cli.md"}
"""Pages that a program writes, as long as there is to tell."""
LISTED = {"aio.py", "errors.py"}
"""Modules that programs import, besides packages."""
FUNCTION_LINES = 70
KERNEL_LINES = 150
"""For the one loop of a kernel, which a compiler sees as a whole."""

Tree = dict[str, str]
"""Path relative to the root, with `/`, to text."""


def project_tree() -> Tree:
    """Every text file that git knows or would take; without git, everything outside of caches."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
    )
    if listed.returncode == 0:
        names = [name for name in listed.stdout.decode().split("\0") if name]
    else:
        skip = re.compile(r"(^|/)(\.venv[^/]*|\.git|build|dist|__pycache__|\.[a-z]+_cache)/")
        paths = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
        names = [path for path in paths if not skip.search(path)]
    tree: Tree = {}
    for name in names:
        path = ROOT / name
        if not path.is_file():
            continue
        data = path.read_bytes()
        if b"\0" not in data:
            tree[name] = data.decode("utf-8", "replace")
    return tree


@pytest.fixture(scope="module")
def tree() -> Tree:
    """The project as it stands."""
    return project_tree()


def modules(tree: Tree) -> Iterator[tuple[str, ast.Module]]:
    """The parsed modules of the package, without tests."""
    for name, text in tree.items():
        if name.endswith(".py") and not name.startswith(("tests/", "docs/")) and name != "setup.py":
            yield name, ast.parse(text)


def imported_names(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Every absolute dotted name that a module imports, at any depth, with its line."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def room_of(first: str) -> str:
    """The room that a first path or name component stands for; "" for the face at the root."""
    room = first.removesuffix(".py")
    return room if room in FLOORS else ""


def upward_imports(tree: Tree) -> list[str]:
    """Imports that do not go down or stay in their own room, relative ones, and of tests."""
    complaints = []
    for name, module in modules(tree):
        own = room_of(name.split("/")[0])
        for line, target in imported_names(module):
            root, _, rest = target.partition(".")
            if target.startswith("."):
                complaints.append(f"{name}:{line} imports relatively: {target}")
            elif root == "tests":
                complaints.append(f"{name}:{line} imports tests")
            elif root == "logweir":
                room = room_of(rest.split(".")[0])
                if room != own and FLOORS.get(room, FACE) >= FLOORS.get(own, FACE):
                    complaints.append(f"{name}:{line} imports {target}, which is not below it")
    return complaints


def long_files(tree: Tree) -> list[str]:
    """Source and documentation files over the limit."""
    return [
        f"{name} has {text.count(chr(10))} lines"
        for name, text in tree.items()
        if name.endswith((".py", ".pyi", ".pxd", ".pxi", ".pyx", ".sh", ".md"))
        and not name.startswith("tests/data/")
        and name not in GENERATED
        and text.count("\n") > (800 if name in LONG_FILES else FILE_LINES)
    ]


def borrowed_names(tree: Tree) -> list[str]:
    """Compiled modules that are called as one of the standard library. Python 3.11 and 3.12 look
    for the file of a line of C by its last name alone: tracebacks would show lines of that one."""
    found = re.findall(r'"((?:\w+/)*(\w+)\.py)"', tree.get("compiled.py", ""))
    return [file for file, name in found if name in sys.stdlib_module_names]


def long_functions(tree: Tree) -> list[str]:
    """Functions whose body is over the limit."""
    complaints = []
    for name, module in modules(tree):
        limit = KERNEL_LINES if name.endswith("kernel.py") else FUNCTION_LINES
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.body[0].lineno + 1
                if lines > limit:
                    complaints.append(f"{name}:{node.lineno} {node.name} has {lines} lines")
    return complaints


def unlisted_packages(tree: Tree) -> list[str]:
    """Folders with an `__init__.py` that pyproject.toml does not install, and the reverse."""
    listed = set(tomllib.loads(tree["pyproject.toml"])["tool"]["setuptools"]["packages"])
    found = {
        ".".join(["logweir", *name.split("/")[:-1]])
        for name in tree
        if name.endswith("__init__.py") and not name.startswith("tests/")
    }
    return [f"{name} is not in pyproject.toml" for name in sorted(found - listed)] + [
        f"{name} is in pyproject.toml but not there" for name in sorted(listed - found)
    ]


def undocumented_names(tree: Tree) -> list[str]:
    """Modules, and functions and classes that others may use, that have no docstring."""
    complaints = []
    for name, module in modules(tree):
        if module.body and ast.get_docstring(module) is None:
            complaints.append(f"{name} has no docstring")
        for node in module.body:
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and not node.name.startswith("_")
                and ast.get_docstring(node) is None
            ):
                complaints.append(f"{name}:{node.lineno} {node.name} has no docstring")
    return complaints


def needless_lists(tree: Tree) -> list[str]:
    """Modules whose `__all__` says again what their names say: what others may use begins with no
    underscore. A list is for who shows names of other modules, and for what programs import."""
    complaints = []
    for name, module in modules(tree):
        if name.endswith("__init__.py") or name in LISTED:
            continue
        imported = {
            alias.asname or alias.name
            for node in ast.walk(module)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        complaints += [
            f"{name}:{node.lineno} lists its own names"
            for node in module.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            if not imported & set(ast.literal_eval(node.value))
        ]
    return complaints


def can_fail(function: ast.AST, helpers: frozenset[str] = frozenset()) -> bool:
    """Whether a test can fail: it asserts, expects an exception, allows only named ones, waits
    until something holds, or calls one of `helpers`, which do."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Try) and all(map(is_named, node.handlers)) and node.handlers:
            return True
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            if called in ("raises", "fail", "warns", "suppress", "run_state_machine_as_test"):
                return True
            if called in helpers or re.match(r"_?(assert|check|expect)_|(wait_)?until$", called):
                return True
    return False


def is_named(handler: ast.ExceptHandler) -> bool:
    """Whether an except clause names what it takes, so that anything else fails the test."""
    names = {node.id for node in ast.walk(handler.type or handler) if isinstance(node, ast.Name)}
    return handler.type is not None and not names & {"Exception", "BaseException"}


def idle_tests(tree: Tree) -> list[str]:
    """Tests that cannot fail."""
    complaints = []
    for name, text in tree.items():
        if not name.startswith("tests/") or not name.endswith(".py"):
            continue
        functions = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        helpers = frozenset(node.name for node in functions if can_fail(node))
        complaints += [
            f"{name}:{node.lineno} {node.name} asserts nothing"
            for node in functions
            if node.name.startswith("test_") and not can_fail(node, helpers)
        ]
    return complaints


def sleeping_tests(tree: Tree) -> list[str]:
    """Tests that wait by the clock instead of for an event. `support` holds the two helpers that
    look again and again."""
    return [
        f"{name}:{node.lineno} sleeps"
        for name, text in tree.items()
        if name.startswith("tests/") and name.endswith(".py")
        if not name.startswith("tests/support/") and "sleep" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("time", "asyncio", "anyio", "trio")
        and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    ]


# Written so that they do not find themselves.
FOREIGN = re.compile(
    r"\.\./share" + r"d\b|/(?:work|root|Users|home)" + r"/[A-Za-z0-9_.]|[A-Z]:\\Users" + r"\\"
)


def foreign_paths(tree: Tree) -> list[str]:
    """Paths that exist on one machine only."""
    return [
        f"{name}:{number} {match[0]}"
        for name, text in tree.items()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := FOREIGN.search(line))
    ]


LMDB_USERS = (
    "store/state/base.py",
    "tests/property/test_lmdb_bindings.py",
    "tests/unit/test_lmdb_base.py",
)
"""Who may know py-lmdb: two copies of LMDB with one environment open take each other's locks."""


def second_lmdb(tree: Tree) -> list[str]:
    """Imports of py-lmdb past `store.state.base`."""
    return [
        f"{name}:{line} imports lmdb"
        for name, text in tree.items()
        if name.endswith(".py") and name not in LMDB_USERS and "lmdb" in text
        for line, target in imported_names(ast.parse(text))
        if target.partition(".")[0] == "lmdb"
    ]


STORE_ROOMS = ("schema", "state", "engine", "commit", "recover")
"""Folders of `store/`, each above those before it; the face, `store/` itself, is above them all."""

PROTOCOLS = ("iproto", "tank", "memcached", "greenstack", "synapse", "redis")
REPLICATION_ROOMS = {
    "": 0.0,  # sockets, and what else stands in `replication/` itself
    "stream": 1.0,
    "service": 2.0,
    "bucket": 3.0,
    "topic": 3.0,
    "outgoing": 3.5,
    **dict.fromkeys(PROTOCOLS, 4.0),
    "protocols": 5.0,
    "administration": 5.0,
    "web": 5.0,
    "capture": 5.5,
    "server": 6.0,
}
"""Floors in `replication/`: of folders, and of the files that know all of them."""

PROTOCOL_ROOMS = (
    *("__init__", "wire", "server_session", "client_session"),
    *("serve", "push", "follow", "client"),
)
"""What each folder of a protocol holds, as a file or a folder, and nothing else."""

SERVED_ONLY = {"redis": {"client_session", "push", "follow", "client"}}
"""Protocols in which nothing is followed or streamed: the rooms that they do not have."""


def running_imports(module: ast.Module) -> Iterator[tuple[int, str]]:
    """The same without those that only a type checker sees."""
    typed = {
        node.lineno
        for test in ast.walk(module)
        if isinstance(test, ast.If)
        if isinstance(test.test, ast.Name) and test.test.id == "TYPE_CHECKING"
        for node in ast.walk(test)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return (found for found in imported_names(module) if found[0] not in typed)


def targets_of(name: str, text: str, *, typed: bool) -> Iterable[tuple[int, str]]:
    """What a file of the package imports, kernels included. `typed`: also for types only."""
    if name.endswith(".py"):
        return (imported_names if typed else running_imports)(ast.parse(text))
    if name.endswith((".pyx", ".pxd", ".pyi")):
        found = re.compile(r"\s*(?:from|c?import) (\S+)").match
        lines = enumerate(text.splitlines(), 1)
        return ((number, hit[1]) for number, line in lines if (hit := found(line)))
    return ()


def store_rooms(tree: Tree) -> list[str]:
    """Imports between folders of `store/` that do not go down, and such of kernels."""
    complaints = []
    for name, text in tree.items():
        own = name.removeprefix("store/").split("/")[0]
        if not name.startswith("store/") or own not in STORE_ROOMS:
            continue
        for number, target in targets_of(name, text, typed=False):
            room = target.removeprefix("logweir.store").removeprefix(".").split(".")[0]
            if (
                target.startswith("logweir.store")
                and room not in STORE_ROOMS[: STORE_ROOMS.index(own) + 1]
            ):
                complaints.append(f"{name}:{number} imports {target}, which is not below it")
    return complaints


def replication_room(place: str) -> str:
    """The room of a file or module, below `replication`."""
    first = re.split(r"[./]", place)[0]
    return first if first in REPLICATION_ROOMS else ""


def sideways_imports(tree: Tree) -> list[str]:
    """Imports between rooms of `replication/` that do not go down: between protocols above all."""
    complaints = []
    for name, text in tree.items():
        if not name.startswith("replication/"):
            continue
        own = replication_room(name.removeprefix("replication/"))
        for number, target in targets_of(name, text, typed=True):
            if not target.startswith("logweir.replication."):
                continue
            room = replication_room(target.removeprefix("logweir.replication."))
            if room != own and REPLICATION_ROOMS[room] >= REPLICATION_ROOMS[own]:
                complaints.append(f"{name}:{number} imports {target}, which is not below it")
    return complaints


def protocol_folders(tree: Tree) -> list[str]:
    """Folders of protocols that hold anything but the same rooms."""
    complaints = []
    for protocol in PROTOCOLS:
        inside = [
            name.split("/")[2] for name in tree if name.startswith(f"replication/{protocol}/")
        ]
        held = {one.partition(".")[0] for one in inside}
        wanted = set(PROTOCOL_ROOMS) - SERVED_ONLY.get(protocol, set())
        complaints += [
            f"replication/{protocol}: {one}" for one in sorted(held ^ wanted if held else ())
        ]
    return complaints


def import_circles(tree: Tree) -> list[str]:
    """Files that import one another, at any depth, also inside of functions."""
    dotted = {
        name: name[:-3].replace("/", ".").removesuffix(".__init__") for name, _ in modules(tree)
    }
    files = {dotted: name for name, dotted in dotted.items()}
    below: dict[str, set[str]] = {}
    for name, module in modules(tree):
        targets = {target.partition(".")[2] for _, target in running_imports(module)}
        known = {one if one in files else one.rpartition(".")[0] for one in targets}
        below[name] = {files[one] for one in known if one in files} - {name}
    while leaves := [name for name, targets in below.items() if not targets & below.keys()]:
        for name in leaves:
            del below[name]
    while tops := [
        name for name in below if not any(name in targets for targets in below.values())
    ]:
        for name in tops:
            del below[name]
    return [f"{name} is in a circle" for name in below]


CHECKS: list[Callable[[Tree], list[str]]] = [
    upward_imports,
    long_files,
    borrowed_names,
    long_functions,
    unlisted_packages,
    undocumented_names,
    needless_lists,
    idle_tests,
    sleeping_tests,
    foreign_paths,
    second_lmdb,
    store_rooms,
    sideways_imports,
    protocol_folders,
    import_circles,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_house_keeps_its_rules(check: Callable[[Tree], list[str]], tree: Tree) -> None:
    """No file of the project breaks the rule."""
    assert check(tree) == []


GOOD: Tree = {
    "pyproject.toml": '[tool.setuptools]\npackages = ["logweir", "logweir.wal"]\n',
    "__init__.py": '"""Face."""\nfrom logweir.store.log import open\n',
    "wal/__init__.py": "",
    "wal/a.py": '"""A."""\nfrom logweir.errors import LogweirError\nfrom logweir.wal.b import c\n',
    "tests/test_a.py": "def test_a() -> None:\n    assert 1\n",
}

BAD = [
    (upward_imports, "wal/x.py", '"""X."""\nfrom logweir.store.log import Log\n'),
    (upward_imports, "wal/x.py", '"""X."""\ndef f() -> None:\n    import logweir.tools.cli\n'),
    (upward_imports, "wal/x.py", '"""X."""\nfrom logweir import recovery\n'),
    (upward_imports, "wal/x.py", '"""X."""\nimport logweir\n'),
    (upward_imports, "wal/x.py", '"""X."""\nfrom .b import c\n'),
    (upward_imports, "wal/x.py", '"""X."""\nfrom tests.unit import test_house\n'),
    (upward_imports, "errors.py", '"""X."""\nfrom logweir.wal import vclock\n'),
    (upward_imports, "errors.py", '"""X."""\nfrom logweir.limits import TUPLE_BYTES\n'),
    (upward_imports, "replication/x.py", '"""X."""\nimport logweir.pipeline.jobs\n'),
    (upward_imports, "__init__.py", '"""Face."""\nfrom logweir.tools import tour\n'),
    (long_files, "wal/x.py", "\n" * 601),
    (long_files, "wal/xkernel.pyx", "\n" * 601),
    (long_files, "wal/kernel.py", "\n" * 801),
    (borrowed_names, "compiled.py", 'KERNELS = {"logweir.wal.queue": "wal/queue.py"}\n'),
    (long_functions, "wal/x.py", '"""X."""\ndef f() -> None:\n' + "    f()\n" * 71),
    (long_functions, "wal/kernel.py", '"""X."""\ndef f() -> None:\n' + "    f()\n" * 151),
    (unlisted_packages, "store/__init__.py", ""),
    (unlisted_packages, "pyproject.toml", '[tool.setuptools]\npackages = ["logweir", "a"]\n'),
    (undocumented_names, "wal/x.py", "import os\n"),
    (undocumented_names, "wal/x.py", '"""X."""\ndef f() -> None: ...\n'),
    (undocumented_names, "wal/x.py", '"""X."""\nclass F:\n    x = 1\n'),
    (needless_lists, "wal/x.py", '"""X."""\nimport os\n__all__ = ["f"]\n'),
    (idle_tests, "tests/test_x.py", "def test_x() -> None:\n    print(1)\n"),
    (idle_tests, "tests/test_x.py", "class TestX:\n    async def test_x(self) -> None: ...\n"),
    (
        idle_tests,
        "tests/test_x.py",
        "def test_x() -> None:\n    try:\n        f()\n    except: ...\n",
    ),
    (
        idle_tests,
        "tests/test_x.py",
        "def test_x() -> None:\n    try:\n        f()\n    except Exception: ...\n",
    ),
    (sleeping_tests, "tests/test_x.py", "import time\ndef f() -> None:\n    time.sleep(0.1)\n"),
    (sleeping_tests, "tests/test_x.py", "async def f() -> None:\n    await asyncio.sleep(n)\n"),
    (foreign_paths, "docs/x.md", "see ../share" + "d/protocols"),
    (foreign_paths, "docs/x.md", "cd /wor" + "k/main"),
    (second_lmdb, "store/x.py", '"""X."""\nimport lmdb\n'),
    (store_rooms, "store/schema/x.py", '"""X."""\nfrom logweir.store.state import tree\n'),
    (store_rooms, "store/state/x.py", '"""X."""\nfrom logweir.store import Log\n'),
    (store_rooms, "store/schema/x.pyx", "from logweir.store.state.tree cimport Tree\n"),
    (
        sideways_imports,
        "replication/tank/push.py",
        '"""X."""\nfrom logweir.replication.iproto import push\n',
    ),
    (
        sideways_imports,
        "replication/greenstack/wire/kernel.pxd",
        "cimport logweir.replication.memcached.wire.kernel\n",
    ),
    (sideways_imports, "replication/link.py", '"""X."""\nimport logweir.replication.server\n'),
    (
        sideways_imports,
        "replication/bucket/x.py",
        '"""X."""\nif TYPE_CHECKING:\n    from logweir.replication.topic.store import X\n',
    ),
    (protocol_folders, "replication/tank/push.py", ""),
    (protocol_folders, "replication/synapse/streams/x.py", ""),
    (import_circles, "errors.py", '"""X."""\ndef x():\n    from logweir.wal.a import b\n'),
    (second_lmdb, "tests/test_x.py", "def f() -> None:\n    from lmdb import Environment\n"),
    (foreign_paths, "tests/data/x.json", '"/hom' + 'e/me/data"'),
]


@pytest.mark.parametrize(
    ("check", "name", "text"),
    BAD,
    ids=[f"{check.__name__}-{i}" for i, (check, *_) in enumerate(BAD)],
)
def test_each_check_finds_what_it_looks_for(
    check: Callable[[Tree], list[str]], name: str, text: str
) -> None:
    """The check passes a good tree and complains about the same tree with one bad file."""
    assert check(GOOD) == []
    assert len(check({**GOOD, name: text})) >= 1


def test_every_long_file_needs_its_exception(tree: Tree) -> None:
    """Who shortens one of them takes it off the list."""
    assert [name for name in LONG_FILES if tree.get(name, "").count("\n") <= FILE_LINES] == []


@pytest.mark.parametrize(
    "text",
    [
        "def test_x() -> None:\n    with pytest.raises(ValueError):\n        f()\n",
        "def test_x() -> None:\n    assert_same(1, 2)\n",
        "def test_x() -> None:\n    try:\n        f()\n    except LogweirError:\n        pass\n",
        "def same() -> None:\n    assert f()\n\ndef test_x() -> None:\n    same()\n",
        "def helper() -> None:\n    pass\n",
    ],
)
def test_assertions_of_every_form_count(text: str) -> None:
    """pytest.raises, a helper named assert_… taking only named exceptions, a helper of
    the file that asserts: all count."""
    assert idle_tests({"tests/test_x.py": text}) == []


def test_every_test_file_belongs_to_a_room(tree: Tree) -> None:
    """So that `tools/test ROOM` finds it; and `tools/test` knows every room."""
    files = [Path(name) for name in tree if re.match(r"tests/.*/test_\w+\.py$", name)]
    assert [str(file) for file in files if not rooms_of(file)] == []
    assert " | ".join(ROOMS) in tree["tools/test"]
    assert {room for file in files for room in rooms_of(file)} == set(ROOMS)


def test_every_long_test_file_is_there(tree: Tree) -> None:
    """Who renames one of them renames it in the list."""
    assert [name for name in LONG if f"tests/{name}.py" not in tree] == []
