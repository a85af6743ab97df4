"""What CALL may call: Python functions that the operator registered, by name.

A function is called with the arguments of the request. Where its first parameter is named `log`,
that is the store. What it returns is the answer: a tuple gives several values, None none, anything
else one. It runs in a thread of its own, beside the connection. Code that a client sends (EVAL) is
never run.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

from logweir.errors import ConfigError, ErrorCode, LogweirError, RequestError
from logweir.wal.mp import Ext, Value, pack

__all__ = ["Functions", "load_functions"]


class Functions(Mapping[str, Callable[..., Value]]):
    """The functions of one server. `store`: what a parameter named `log` is given; `guarded`: more
    of them, for those only who may do everything."""

    def __init__(
        self,
        functions: Mapping[str, Callable[..., Value]],
        store: object = None,
        *,
        guarded: Mapping[str, Callable[..., Value]] = MappingProxyType({}),
    ) -> None:
        self._functions = {**functions, **guarded}
        self.guarded = frozenset(guarded)
        self._takes_log = {name: _takes_log(one) for name, one in self._functions.items()}
        self._store = store

    def __getitem__(self, name: str) -> Callable[..., Value]:
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def call(self, name: str, arguments: Sequence[Value], *, as_tuples: bool) -> list[bytes]:
        """Call one function. Returns its values as MsgPack.

        `as_tuples`: every value becomes an array, as CALL_16 wants. Raises `RequestError`: what the
        function raised, 33 for an unknown name, 32 for anything else that went wrong in it.
        """
        function = self._functions.get(name)
        if function is None:
            raise RequestError(ErrorCode.NO_SUCH_PROC, f"Procedure '{name}' is not defined")
        first = (self._store,) if self._takes_log[name] else ()
        try:
            returned = function(*first, *arguments)
            values = returned if _is_plain_tuple(returned) else (returned,)
            if returned is None:
                values = ()
            return [pack(_as_tuple(value) if as_tuples else value) for value in values]
        except RequestError:
            raise
        except LogweirError as error:
            raise RequestError(ErrorCode.PROC_LUA, str(error)) from error
        except Exception as error:
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise RequestError(ErrorCode.PROC_LUA, text) from error


def _as_tuple(value: Value) -> Value:
    return value if isinstance(value, list) or _is_plain_tuple(value) else [value]


def _is_plain_tuple(value: Value) -> bool:
    """An `Ext`, which is one value, is a tuple, too."""
    return isinstance(value, tuple) and not isinstance(value, Ext)


def _takes_log(function: Callable[..., Any]) -> bool:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False
    return names[:1] == ["log"]


def load_functions(module_name: str) -> Mapping[str, Callable[..., Value]]:
    """The functions of a module: those in its `__all__`, else all public ones made in it.

    Raises `ConfigError` if it cannot be imported, whatever it raises, or holds none.
    """
    try:
        module: ModuleType = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            "functions",
            f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}",
            hint="give the name under which `import` finds it, and try `import` in Python",
        ) from error
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
    found = {name: getattr(module, name) for name in names}
    functions = {name: one for name, one in found.items() if callable(one)}
    if not functions:
        raise ConfigError("functions", f"module {module_name!r} holds no function")
    return functions
