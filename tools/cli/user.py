"""`logweir user`: users, roles and grants of a store."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer

import logweir
from logweir.errors import ConfigError
from logweir.replication.service import users
from logweir.replication.service.access import Grant, Privilege, User
from logweir.replication.service.verifiers import verifier
from logweir.tools.cli.output import Output

Action = Literal["list", "add", "passwd", "drop", "grant", "revoke"]


def command(
    out: Output,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The store's folder.")],
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The user or role.")] = "",
    rights: Annotated[
        str,
        typer.Argument(metavar="[RIGHTS]", help="Such as read,write; or the name of a role."),
    ] = "",
    on: Annotated[
        str,
        typer.Option(
            metavar="OBJECT",
            help="What the rights are for: universe, space, space:NAME, function:NAME …",
        ),
    ] = "universe",
    role: Annotated[bool, typer.Option("--role", help="add: make a role, not a user.")] = False,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from stdin.")
    ] = False,
) -> int:
    """Manage the users, roles and grants of a store.

    ACTION is list, add, passwd, drop, grant or revoke. The store must not be served meanwhile.
    Passwords are asked for, or read from stdin; they are never an argument.
    """
    if action != "list" and not name:
        raise ConfigError("NAME", "is missing", hint=f"logweir user {action} DIR NAME")
    with logweir.open(directory, create=False) as log:
        if action == "list":
            _list(out, log)
        elif action == "add":
            password = None if role else _password(password_stdin)
            user_id = users.add_user(log, name, password=password, role=role)
            out.message(f"added {name} with id {user_id}")
        elif action == "passwd":
            users.change_password(log, name, _password(password_stdin))
            out.message(f"changed the password of {name}")
        elif action == "drop":
            users.drop_user(log, name)
            out.message(f"dropped {name}")
        else:
            _change(log, action, name, rights, on)
            out.message(f"{action}: done")
    return 0


def _password(from_stdin: bool) -> str:
    if from_stdin:
        line = sys.stdin.readline()
        if not line:
            raise ConfigError("password", "is missing: stdin ended before it", origin="stdin")
        return line.rstrip("\r\n")
    if not sys.stdin.isatty():
        hint = "give --password-stdin, and the password as one line on stdin"
        raise ConfigError("password", "there is no terminal to ask for it", hint=hint)
    password: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return password


def _change(log: logweir.Log, action: Action, name: str, rights: str, on: str) -> None:
    if not rights:
        raise ConfigError("RIGHTS", "is missing", hint=f"one of {', '.join(users.PRIVILEGES)}")
    words = rights.split(",")
    known = [users.PRIVILEGES[word] for word in words if word in users.PRIVILEGES]
    act = users.grant if action == "grant" else users.revoke
    if not known and len(words) == 1:
        act(log, name, Privilege.EXECUTE, users.Target("role", rights))
        return
    if len(known) != len(words):
        unknown = next(word for word in words if word not in users.PRIVILEGES)
        names = ", ".join(users.PRIVILEGES)
        raise ConfigError("RIGHTS", f"{unknown!r} is not a right", hint=f"one of {names}")
    kind, _, object_name = on.partition(":")
    bits = Privilege(0)
    for one in known:
        bits |= one
    act(log, name, bits, users.Target(kind, object_name))


def _list(out: Output, log: logweir.Log) -> None:
    directory = users.read_directory(log)
    rows = [
        {
            "id": user.id,
            "name": user.name,
            "type": "role" if user.is_role else "user",
            "password": _has_password(user),
            "grants": [
                {"on": one.object_type, "object": one.object_id, "rights": _rights(one.bits)}
                for one in directory.grants(user.id)
            ],
        }
        for user in directory.users()
    ]
    if out.as_json:
        out.json(rows)
        return
    names = {user.id: user.name for user in directory.users()}
    out.table(
        ("id", "name", "type", "password", "may"),
        [
            (*_cells(user), _may(log, directory.grants(user.id), names))
            for user in directory.users()
        ],
        right=("id",),
    )


def _may(log: logweir.Log, grants: Iterable[Grant], names: dict[int, str]) -> str:
    """All of one's grants, with those of the same rights on objects of one kind together."""
    together: dict[tuple[str, str], list[str]] = {}
    for one in grants:
        rights = "" if one.object_type == "role" else ",".join(_rights(one.bits))
        found = together.setdefault((rights, one.object_type), [])
        if one.object_type != "universe":
            found.append(_object_name(log, one, names))
    return "; ".join(_granted(*key, objects) for key, objects in together.items())


def _granted(rights: str, kind: str, objects: list[str]) -> str:
    several = f"{kind}s" if len(objects) > 1 else kind
    on = f"{rights} on {several}" if rights else several
    return f"{on} {', '.join(_spans(objects))}".rstrip()


def _spans(objects: list[str]) -> list[str]:
    """Ids in a row as a span: 1 … 67."""
    spans: list[list[str]] = []
    for one in objects:
        last = spans[-1][-1] if spans else ""
        if one.isdecimal() and last.isdecimal() and int(one) == int(last) + 1:
            spans[-1].append(one)
        else:
            spans.append([one])
    return [one[0] if len(one) == 1 else f"{one[0]} … {one[-1]}" for one in spans]


def _object_name(log: logweir.Log, one: Grant, names: dict[int, str]) -> str:
    if one.object_type == "role":
        return names.get(int(one.object_id), str(one.object_id))
    if one.object_type == "space" and (space := log.schema.get(one.object_id)) is not None:
        return space.name
    return str(one.object_id)


def _cells(user: User) -> tuple[object, ...]:
    return (
        user.id,
        user.name,
        "role" if user.is_role else "user",
        "yes" if _has_password(user) else "no",
    )


def _has_password(user: User) -> bool:
    """Whether it has one to be known; the row of `guest` holds the verifier of an empty one."""
    return user.kept not in ("", verifier(""))


def _rights(bits: int) -> list[str]:
    return [word for word, bit in users.PRIVILEGES.items() if bits & bit]
