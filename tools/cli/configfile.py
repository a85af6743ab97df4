"""One configuration for the commands that run as servers: a TOML file, the environment, flags.

``--config FILE`` (or ``LOGWEIR_CONFIG``) names the file. Its keys are the names of the command's
options without the dashes in front, with `-` or `_` inside, and those of its arguments: `directory`
is DIR. Options that may be repeated take a list. A variable is ``LOGWEIR_`` and the same name in
capitals; what may be repeated stands there with spaces between, and an empty one counts as not
set. Flags take precedence over variables, and these over the file.

What a command takes is read off its declaration, and there is no other list: every argument, and
every option that may come from the environment (`allow_from_autoenv`).
"""

from __future__ import annotations

import inspect
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import typer

from logweir.errors import ConfigError

_CONFIG: Final = "config"


def declared(command: Any) -> dict[str, inspect.Parameter]:
    """What a command takes of file and environment, by parameter name. `command`: one of
    `tools.cli.main`."""
    parameters = inspect.signature(command.callback).parameters
    return {
        name: one
        for name, one in parameters.items()
        if name != _CONFIG and get_origin(one.annotation) is Annotated and _is_setting(one)
    }


def _is_setting(parameter: inspect.Parameter) -> bool:
    return all(getattr(one, "allow_from_autoenv", True) for one in get_args(parameter.annotation))


def read_config(path: Path, command: Any) -> dict[str, Any]:
    """The options that a file gives, by parameter name. `command`: see `declared`.

    Raises `ConfigError`, which shows no password.
    """
    known = declared(command)
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            _CONFIG,
            f"{path} cannot be read: {error.strerror or error}",
            origin="--config",
            hint="give a TOML file that this process may read",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = "write KEY = VALUE in each line, and texts in quotes"
        raise ConfigError(
            _CONFIG, f"it is not TOML: {error}", origin=str(path), hint=hint
        ) from error
    options: dict[str, Any] = {}
    for key, value in found.items():
        name = key.replace("-", "_")
        if name not in known:
            hint = f"known are {', '.join(sorted(map(key_of, known)))}"
            raise ConfigError(key, "there is no such option", origin=str(path), hint=hint)
        if name in options:
            hint = "strike one of them out"
            raise ConfigError(key, "it stands there twice", origin=str(path), hint=hint)
        wanted = _missed(known[name].annotation, value)
        if wanted:
            message = f"{masked(value)!r} is not {wanted}"
            raise ConfigError(key, message, origin=str(path), hint=f"write {wanted}")
        options[name] = value
    return options


def _missed(annotation: Any, value: Any) -> str:
    """What the value should be, "" where it is that."""
    annotation, *notes = get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(one for one in get_args(annotation) if one is not type(None))
    if get_origin(annotation) is list:
        fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return "" if fits else "a list of strings"
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        return "" if value in choices else f"one of {', '.join(choices)}"
    if annotation is bool:
        return "" if isinstance(value, bool) else "true or false"
    if annotation in (int, float):
        kinds = int if annotation is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return "a whole number" if annotation is int else "a number"
        least = next((one.min for one in notes if getattr(one, "min", None) is not None), value)
        most = next((one.max for one in notes if getattr(one, "max", None) is not None), value)
        if value < least:
            return f"at least {least}"
        return f"at most {most}" if value > most else ""
    return "" if isinstance(value, str) else "a string"


def _load(context: typer.Context, value: Path | None) -> Path | None:
    """Let the options that were not given have the values of the file. Raises `ConfigError`."""
    if value is not None:
        read = read_config(value, context.command)
        context.default_map = {**(context.default_map or {}), **read}
    return value


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=_load,
        help="TOML file with these options; the command line and the environment take precedence.",
    ),
]
"""The option of commands that have a configuration."""


def evaluate(command: Any, config: Path | None) -> typer.Context:
    """What a command has that is given this file and nothing else, not even its arguments.
    `command`: see `declared`. Raises `ConfigError`."""
    required = [one for one in command.params if one.required]
    for one in required:
        one.required = False
    try:
        words = [] if config is None else ["--config", str(config)]
        context: typer.Context = command.make_context(command.name, words)
    finally:
        for one in required:
            one.required = True
    return context


def key_of(name: str) -> str:
    """What a parameter is called in files."""
    return name.replace("_", "-")


def origin_of(context: typer.Context, name: str) -> str:
    """Where a command has a value from: the option, the variable, the file, or "default"."""
    source = context.get_parameter_source(name)
    variables = {one.name: one.envvar for one in context.command.params}
    told: Mapping[str, str] = {
        "COMMANDLINE": f"--{key_of(name)}",
        "ENVIRONMENT": str(variables[name]),
        "DEFAULT_MAP": str(context.params.get(_CONFIG)),
    }
    return told.get(source.name if source else "", "default")


def masked(value: Any) -> Any:
    """A value as it may be shown: the passwords of addresses are left out."""
    if isinstance(value, list | tuple):
        return [masked(one) for one in value]
    if not isinstance(value, str):
        return value
    scheme, separator, rest = (
        value.rpartition("://") if value.count("://") == 1 else ("", "", value)
    )
    who, at, host = rest.rpartition("@")
    user, colon, _ = who.partition(":")
    return f"{scheme}{separator}{user}{colon}{'…' if colon else ''}{at}{host}"
