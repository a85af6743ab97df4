"""`logweir user`: users, roles and grants of a store."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from logweir.errors import ConfigError
from logweir.replication.service import users
from logweir.store.schema.access import Privilege
from logweir.tools.cli.operating import Ask, StoreArgument, operate
from logweir.tools.cli.output import Output
from logweir.tools.cli.passwords import new_password, read_password

Action = Literal["list", "add", "passwd", "drop", "grant", "revoke"]


def command(
    out: Output,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")],
    where: StoreArgument,
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

    ACTION is list, add, passwd, drop, grant or revoke. A folder must not be served meanwhile; its
    server can be asked instead, by who may do everything. Passwords are asked for, or read from
    stdin; they are never an argument, and go to a server encrypted or on this machine only.
    """
    if action != "list" and not name:
        raise ConfigError("NAME", "is missing", hint=f"logweir user {action} WHERE NAME")
    says_password = action == "passwd" or (action == "add" and not role)
    with operate(where, says_password=says_password) as ask:
        if action == "list":
            _list(out, ask("users"))
        elif action == "add":
            user_id = (
                ask("add_role", name) if role else ask("add_user", name, _said(password_stdin))
            )
            out.message(f"added {name} with id {user_id}")
        elif action == "passwd":
            ask("change_password", name, _said(password_stdin))
            out.message(f"changed the password of {name}")
        elif action == "drop":
            ask("drop_user", name)
            out.message(f"dropped {name}")
        else:
            _change(ask, action, name, rights, on)
            out.message(f"{action}: done")
    return 0


def _said(from_stdin: bool) -> str:
    if from_stdin:
        return read_password()
    if not sys.stdin.isatty():
        hint = "give --password-stdin, and the password as one line on stdin"
        raise ConfigError("password", "there is no terminal to ask for it", hint=hint)
    return new_password()


def _change(ask: Ask, action: Action, name: str, rights: str, on: str) -> None:
    if not rights:
        raise ConfigError("RIGHTS", "is missing", hint=f"one of {', '.join(users.PRIVILEGES)}")
    words = rights.split(",")
    known = [users.PRIVILEGES[word] for word in words if word in users.PRIVILEGES]
    names = ", ".join(users.PRIVILEGES)
    if not known and len(words) == 1:
        if rights not in {one["name"] for one in ask("users") if one["type"] == "role"}:
            text = f"{rights!r} is neither a right nor a role"
            hint = f"rights are {names}; `logweir user list WHERE` shows the roles"
            raise ConfigError("RIGHTS", text, hint=hint)
        ask(action, name, int(Privilege.EXECUTE), "role", rights)
        return
    if len(known) != len(words):
        unknown = next(word for word in words if word not in users.PRIVILEGES)
        raise ConfigError("RIGHTS", f"{unknown!r} is not a right", hint=f"one of {names}")
    kind, _, object_name = on.partition(":")
    bits = Privilege(0)
    for one in known:
        bits |= one
    ask(action, name, int(bits), kind, object_name)


def _list(out: Output, found: Sequence[dict[str, Any]]) -> None:
    if out.as_json:
        out.json(found)
        return
    rows = [
        (*(one[key] for key in ("id", "name", "type")), _yes(one["password"]), _may(one["grants"]))
        for one in found
    ]
    out.table(("id", "name", "type", "password", "may"), rows, right=("id",))


def _yes(told: bool) -> str:
    return "yes" if told else "no"


def _may(grants: Sequence[dict[str, Any]]) -> str:
    """All of one's grants, with those of the same rights on objects of one kind together."""
    together: dict[tuple[str, str], list[str]] = {}
    for one in grants:
        rights = "" if one["on"] == "role" else ",".join(one["rights"])
        found = together.setdefault((rights, one["on"]), [])
        if one["on"] != "universe":
            found.append(one["object_name"])
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
