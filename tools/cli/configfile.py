"""A command's options from a TOML file: ``--config FILE``.

Keys are the names of the options without the dashes in front, with `-` or `_` inside; `directory`
is the argument DIR. Options that may be repeated take a list. The command line takes
precedence over an environment variable, and that over the file. A key that is no option,
or a value of another type, is an error that names the file and the key.
"""

from __future__ import annotations

import inspect
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import typer

from logweir.errors import ConfigError

__all__ = ["config_option", "read_config"]

_NOT_IN_FILES: Final = frozenset(("out", "config"))


def read_config(path: Path, command: Callable[..., Any]) -> dict[str, Any]:
    """The options that a file gives, by parameter name. `command`: what takes them.

    Raises `ConfigError`.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    known = {name: one for name, one in parameters.items() if name not in _NOT_IN_FILES}
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(
            "config", f"{path} cannot be read: {error.strerror or error}", origin="--config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config", f"it is not TOML: {error}", origin=str(path)) from error
    options: dict[str, Any] = {}
    for key, value in found.items():
        name = key.replace("-", "_")
        if name not in known:
            hint = f"known are {', '.join(sorted(known))}"
            raise ConfigError(key, "there is no such option", origin=str(path), hint=hint)
        if name in options:
            raise ConfigError(key, "it stands there twice", origin=str(path))
        wanted = _missed(known[name].annotation, value)
        if wanted:
            raise ConfigError(key, f"{value!r} is not {wanted}", origin=str(path))
        options[name] = value
    return options


def _missed(annotation: Any, value: Any) -> str:
    """What the value should be, "" where it is that."""
    least = None
    if get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
        least = next((one.min for one in notes if getattr(one, "min", None) is not None), None)
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
        return f"at least {least}" if least is not None and value < least else ""
    return "" if isinstance(value, str) else "a string"


def config_option(command: Callable[[], Callable[..., Any]]) -> Any:
    """The option `--config` of the command that `command` gives."""

    def load(context: typer.Context, value: Path | None) -> Path | None:
        if value is not None:
            try:
                options = read_config(value, command())
            except ConfigError as error:
                text = f"{error.message}. Hint: {error.hint}" if error.hint else error.message
                raise typer.BadParameter(text) from error
            context.default_map = {**(context.default_map or {}), **options}
        return value

    return typer.Option(
        "--config",
        envvar="LOGWEIR_CONFIG",
        metavar="FILE",
        is_eager=True,
        callback=load,
        help="TOML file with these options; the command line and the environment take precedence.",
    )
