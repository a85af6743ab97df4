"""Tarantool's binary protocol, as a server has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from logweir.replication.iproto.follow.source import TarantoolSource
from logweir.replication.iproto.serve.endpoint import IprotoService
from logweir.replication.iproto.serve.functions import Functions, load_functions
from logweir.replication.iproto.serve.instance import Instance
from logweir.replication.iproto.wire.address import SCHEMES
from logweir.replication.listener import Service
from logweir.replication.runner import Source
from logweir.replication.service.protocol import Surroundings, WireProtocol
from logweir.replication.service.shared import Shared
from logweir.replication.urls import Url


class IprotoProtocol(WireProtocol):
    """One instance, whatever the address."""

    schemes = SCHEMES
    instance: Instance

    def __init__(self, shared: Shared, around: Surroundings) -> None:
        super().__init__(shared, around)
        found = load_functions(around.functions) if around.functions else {}
        calls: dict[str, Callable[..., Any]] = {
            **found,
            **around.calls,
            "box.info": lambda: self.instance.info(),
            "box.broadcast": lambda *given: self.instance.events.broadcast(*given),
        }
        functions = Functions(calls, shared.log, guarded=around.operator_calls)
        self.instance = Instance(shared, functions)

    @classmethod
    def check_listener(cls, url: Url) -> None:
        """See `WireProtocol`: there is nothing to choose."""

    @classmethod
    def check_upstream(cls, url: Url, *, once: bool) -> None:
        url.flag("anonymous")

    def services(self, url: Url) -> Sequence[tuple[Url, Service]]:
        return [(url, IprotoService(self.instance))]

    def source(self, url: Url) -> Source:
        return TarantoolSource(self.shared, url)

    def stopping(self) -> None:
        """See `WireProtocol`: clients that watch for it are told."""
        self.instance.events.end()

    async def close(self) -> None:
        await self.instance.calls.close()
        self.instance.trials.close()

    def status(self) -> dict[str, list[Any]]:
        """The replicas that follow."""
        return {"replicas": self.instance.status()}


PROTOCOL = IprotoProtocol
