"""How test files are dealt out to several workers."""

from __future__ import annotations

from pathlib import Path

from xdist.scheduler import LoadFileScheduling

SPARK: tuple[str, ...] = (
    "spark/test_spark_kill",
    "spark/test_spark_jobs",
    "spark/test_spark_upstreams",
    "spark/test_spark_mirror",
    "spark/test_spark_cli",
    "spark/test_spark_streams",
    "spark/test_spark_sinks",
    "spark/test_spark_read",
    "spark/test_spark_places",
    "spark/test_spark_settled",
    "spark/test_spark_java",
    "spark/test_spark_verify",
    "docs/test_spark_example",
)
"""Files whose tests share one Spark session: one worker has all of them, so that it begins once."""

LONG: tuple[str, ...] = (
    *SPARK,
    "spark/test_spark_cluster",
    "interop/test_pipeline_spool_urls",
    "sim/test_failing_system_calls",
    "interop/test_synapse_cluster",
    "disk/test_state_damage",
    "fuzz/test_statements_sanitized",
    "fuzz/test_memtable_sanitized",
    "disk/test_crash_power_cuts",
    "sim/test_whole_store",
    "interop/test_synapse_workers",
    "interop/test_follower_contract",
    "sim/test_many_stores",
    "interop/test_pipeline_stores",
    "sim/test_copy_stores",
    "interop/test_pipeline_s3",
    "interop/test_archive_s3",
    "interop/test_settled_followers",
    "docs/test_docs",
    "sim/test_store_faults",
    "disk/test_traced_commits",
    "disk/test_tank_follower_kill",
    "property/test_applied_rows",
    "interop/test_hub_kill",
    "interop/test_pipeline_real_synapse",
    "interop/test_real_synapse",
    "fuzz/test_kernel_sanitized",
    "property/test_greenstack_pushing",
    "property/test_memcached_lines",
    "disk/test_mesh_kill",
    "disk/test_kill_loop",
    "disk/test_interrupts",
    "disk/test_memory",
    "disk/test_short_writes",
    "sim/test_reference_faults",
    "sim/test_failing_calls",
    "sim/test_power_cut",
    "fuzz/test_recovery_fuzz",
    "disk/test_fork",
    "disk/test_failpoints",
    "interop/test_values",
    "disk/test_names",
    "sim/test_store_histories",
    "interop/test_memcached_source",
    "disk/test_tank_crashes",
    "interop/test_pipeline_spools",
)
"""Files that take longest, about the longest first: they are begun first, so that in the end no
worker is alone with one."""


def place_of(path: Path) -> int:
    """When a test file is begun: 0 is the first."""
    name = f"{path.parent.name}/{path.stem}"
    return LONG.index(name) if name in LONG else len(LONG)


class Dealing(LoadFileScheduling):
    """By files, but those in `SPARK` as if they were one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "spark" if file.removeprefix("tests/").removesuffix(".py") in SPARK else file
