"""How long it takes to send bundles, as the metric of a Tank broker tells it."""

from __future__ import annotations

import re

from support.loops import run, until
from unit.test_tank_endpoint import frame, part, raw, served, store

from logweir.limits import OUTPUT_HIGH_BYTES
from logweir.replication.tank.client import Client
from logweir.replication.tank.serve.endpoint import TankService
from logweir.replication.tank.wire.codec import encode_request
from logweir.replication.tank.wire.messages import Fetch, FetchAnswer, FetchPart
from logweir.replication.topic.bundle import Message, encode_bundle


def latencies(service: TankService) -> dict[str, float]:
    """Count and sum of the metric, by their names."""
    text = service.metrics.render().decode()
    found = re.findall(r"tanksrv_topic_latency_(count|sum|bucket)\{(\S+)\} (\S+)", text)
    return {f"{kind} {labels}": float(value) for kind, labels, value in found}


def test_time_of_an_answer_ends_when_the_client_has_taken_it() -> None:
    """Each partition with bundles counts; none while the answer is on its way; of a client that
    leaves meanwhile nothing is kept."""

    async def test() -> None:
        topics = store()
        big = encode_bundle([Message(1, 1, None, bytes(8 * OUTPUT_HIGH_BYTES))], compress=False)
        topics.content["t"][0].add(1, 1, big)
        topics.content["t"][1].add(1, 1, part().bundle)
        async with served(topics) as (url, service):
            both = tuple(FetchPart("t", partition, 1, 1 << 26) for partition in (0, 1))
            request = encode_request(Fetch(1, (("t", both),)))
            reader, writer = await raw(url)
            writer.write(request)
            (conversation,) = service._conversations.values()
            await until(lambda: not conversation.link.writable)
            assert not latencies(service)
            assert isinstance(await frame(reader), FetchAnswer)
            await until(lambda: bool(latencies(service)))
            found = latencies(service)
            assert found['count n="t"'] == found['bucket le="+Inf",n="t"'] == 2
            assert found['sum n="t"'] > 0
            assert sum(key.startswith("bucket") for key in found) == 31
            async with Client(url) as client:
                await client.bundle_at("t", 0, 1)
            await until(lambda: latencies(service)['count n="t"'] == 3)
            writer.write(request)
            await until(lambda: not conversation.link.writable)
            writer.transport.abort()
            await conversation.link.gone
            assert conversation._sending._timer is None
            assert latencies(service)['count n="t"'] == 3

    run(test)
