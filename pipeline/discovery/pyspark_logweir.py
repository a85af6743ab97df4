"""Where Spark finds the format `logweir` without being told: it imports `pyspark_*` by name."""

from logweir.pipeline.source import LogweirSource as DefaultSource

__all__ = ["DefaultSource"]
