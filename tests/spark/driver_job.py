"""A stream from folder to folder that dies at a named place of a commit.

Arguments: source, target, checkpoint, and a failpoint or "". Prints `done` where it ends by itself.
The commit runs in a Python worker that Spark starts; there the process that is to die is the JVM,
the driver, together with the worker.
"""

from __future__ import annotations

import sys

from logweir import pipeline


def main(source: str, target: str, checkpoint: str) -> None:
    """Run the query until all that is there is taken."""
    spark = pipeline.session(
        "local[2]",
        spark__driver__memory="512m",
        spark__driver__extraJavaOptions="-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    )
    query = (
        spark.readStream.format("logweir")
        .options(spaces="t", max_rows_per_batch="20")
        .load(source)
        .writeStream.format("logweir")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()
    spark.stop()
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:4])
