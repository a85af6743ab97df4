"""How a command's help is set: values by names that people read, not by Python's types."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from typer import BadParameter
from typer.core import TyperCommand
from typer.models import TyperPath

from logweir.errors import ConfigError

UsageError: Final[Any] = BadParameter.__mro__[1]
"""Of the library that Typer brings with it, or needs."""

_TOPIC: Final = "logweir.topic"
"""Where a context keeps the first word: a command outlives what it is run for."""


class Topic(NamedTuple):
    """What help tells of one first word of a command. `text`: what it does; `options`: names of the
    parameters that it takes, besides those that each takes; `example`: words behind the program."""

    text: str
    options: tuple[str, ...]
    example: str


def value_name(option: str, annotation: Any) -> str:
    """What stands for the value of an option in its help: `N`, `PATH`, the choices, or its name.

    `annotation`: of its parameter, with or without `Annotated`.
    """
    kinds = [annotation]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            return "|".join(str(one.value) for one in kind)
        if get_origin(kind) is Literal:
            return "|".join(map(str, get_args(kind)))
        kinds += [one for one in get_args(kind) if isinstance(one, type) or get_args(one)]
    if int in kinds or float in kinds:
        return "N"
    return "PATH" if Path in kinds else option.lstrip("-").upper().replace("-", "_")


class HelpfulCommand(TyperCommand):
    """A command whose every option names its value. `topics`: by first word, where what the command
    does and takes depends on it: `logweir COMMAND WORD --help` tells of that alone."""

    topics: Mapping[str, Topic] = {}
    more_hint = ""  # what to do with words that are too many

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Note the first word, which help is shown before it is read. Raises `ConfigError` for an
        address in the place of a file or folder: it would be made here under that name."""
        ctx.meta[_TOPIC] = next((one for one in args if one in self.topics), "")
        ctx.allow_extra_args = bool(self.more_hint)
        try:
            left = super().parse_args(ctx, args)
        except UsageError as error:
            option = getattr(error, "option_name", "")
            for one in self.params:
                if option in one.opts and one.metavar:  # its value is missing
                    error.message += f" It is {one.metavar}."
            raise
        if left and not ctx.resilient_parsing and self.more_hint:
            raise ConfigError(" ".join(left), "is more than it takes", hint=self.more_hint)
        for one in self.params:
            given = ctx.params.get(one.name or "") if isinstance(one.type, TyperPath) else None
            for path in given if isinstance(given, list | tuple) else [given]:
                if "://" in str(path):
                    option = one.opts[0].startswith("-")
                    raise ConfigError(
                        one.opts[0] if option else (one.metavar or one.opts[0]).strip("[]."),
                        f"{path} is an address, not a file or folder of this machine",
                        hint=f"`{ctx.command_path} --help` tells what else it takes",
                    )
        return left

    def params_of(self, topic: str) -> list[Any]:
        """The parameters that a topic takes."""
        common = {one.name for one in self.params}.difference(
            *(one.options for one in self.topics.values())
        )
        wanted = common | set(self.topics[topic].options)
        return [one for one in self.params if one.name in wanted]

    def name_values(self, signature: inspect.Signature) -> None:
        """Name the values that the options' own declarations do not. `signature`: of the work.

        Whether a path may be read the work finds out and tells, as exit code 4."""
        for one in self.params:
            if isinstance(one.type, TyperPath):
                one.type.readable = False
            declared = signature.parameters.get(one.name or "")
            if declared is not None and one.param_type_name == "option":
                one.metavar = one.metavar or value_name(one.opts[0], declared.annotation)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] DIR [NAME]...`: optional ones in brackets. No context: of all."""
        topic = ctx.meta[_TOPIC] if ctx else ""
        pieces = [topic] if topic else []
        pieces.append("[OPTIONS]")
        for one in self.params[bool(topic) :]:
            if one.param_type_name == "argument":
                name = one.metavar or (one.name or "").upper()
                more = "..." if one.nargs != 1 and not name.endswith("...") else ""
                pieces.append((name if one.required or name[0] == "[" else f"[{name}]") + more)
        return pieces

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """What the command does, or the topic, and an example of that."""
        if not ctx.meta[_TOPIC]:
            super().format_help_text(ctx, formatter)
            return
        topic = self.topics[ctx.meta[_TOPIC]]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(topic.text)
            formatter.write_paragraph()
            margin = " " * formatter.current_indent
            formatter.write(f"{margin}logweir {topic.example}\n")  # whole, to be copied

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The tables of arguments and options."""
        left_out: set[str | None] = set()
        if topic := ctx.meta[_TOPIC]:
            left_out = {one.name for one in self.params}
            left_out -= {one.name for one in self.params_of(topic)[1:]}
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            rows = [
                record
                for one in self.get_params(ctx)
                if one.param_type_name == kind
                and one.name not in left_out
                and (record := one.get_help_record(ctx))
            ]
            if kind == "argument":
                rows = [(re.split(r" |:<", name)[0], text) for name, text in rows]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
