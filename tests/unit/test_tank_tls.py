"""Tank over TLS: our endpoint, our client and our source; the certificate is self-made."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

import pytest

import logweir
from logweir.errors import Unreachable
from logweir.replication.listener import server_tls
from logweir.replication.metrics import Metrics
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.runner import Runner, SourceState
from logweir.replication.server import Server, ServerOptions
from logweir.replication.tank.client import Client
from logweir.replication.tank.follow.source import TankSource

TLS = Path(__file__).parents[1] / "data" / "tls"
CERTIFICATE = TLS / "certificate.pem"


def test_publish_fetch_and_follow_over_tls(tmp_path: Path) -> None:
    """A megabyte there and back, then followed by another store; plain and unknown are refused."""

    async def test() -> None:
        tls = server_tls(CERTIFICATE, TLS / "key.pem")
        options = ServerOptions(
            listen=[parse_listen_url("tank://127.0.0.1:0")], guest="all", tls=tls
        )
        with logweir.open(tmp_path / "one") as log, logweir.open(tmp_path / "two") as other:
            server = Server(log, options)
            (plain,) = await server.start()
            address = f"tank://127.0.0.1:{plain.port}"
            url = f"{address}?tls=1&ca={quote(str(CERTIFICATE))}"
            async with Client(parse_url(url)) as client:
                await client.create_topic("t", 1)
                async with client.producer() as producer:
                    sent = [await producer.send("t", bytes((n,)) * 10_000) for n in range(100)]
                await asyncio.gather(*sent)
                async with client.consumer("t", start="begin") as consumer:
                    found = [(await consumer.get()).content for _ in range(100)]
            assert found == [bytes((n,)) * 10_000 for n in range(100)]
            source = TankSource(parse_url(f"{address}/t?tls=1&ca={quote(str(CERTIFICATE))}"), other)
            runner = Runner(source, metrics=Metrics())
            task = asyncio.create_task(runner.run())
            while runner.status.state is not SourceState.FOLLOWING:
                assert runner.status.state is not SourceState.STOPPED, runner.status.last_error
                await runner.changed()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert other.select("t") == log.select("t")
            with pytest.raises(Unreachable, match="certificate verify failed"):
                async with Client(parse_url(f"{address}?tls=1")) as client:
                    await client.topics()
            with pytest.raises(Unreachable):
                async with Client(plain) as client:
                    await client.topics()
            await server.stop()

    async def limited() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(limited())
