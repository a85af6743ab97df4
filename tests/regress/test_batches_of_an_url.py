"""`pipeline.batches(url=…)` once gave nothing, silently."""

from __future__ import annotations

import pytest

from logweir import pipeline
from logweir.errors import ConfigError


@pytest.mark.parametrize("url", ["tarantool://h", "tank://h/t", "tap://h"])
def test_batches_without_spark_refuse_an_url(url: str) -> None:
    """By name: only Spark's readers ask servers."""
    with pytest.raises(ConfigError, match=r"url .* in Spark only"):
        list(pipeline.batches(url=url))
