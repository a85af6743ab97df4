"""A notebook in cells (`# %%`): follow a Tarantool's folder, join two of its spaces, plot its rows.

Run it as a program, or cell by cell in an editor that knows the marks::

    python docs/examples/spark_follow.py FOLDER OUT

FOLDER holds the logs of a Tarantool, running or not, with spaces `customers` (id, name, city) and
`orders` (id, customer, price). OUT gets the changes as Parquet, the checkpoint and the picture.
Run it again later: it goes on where it was.
"""

# %% Where things are
from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import functions as sql

from logweir import pipeline

folder, out = Path(sys.argv[1]), Path(sys.argv[2])
bucket_seconds = int(sys.argv[3]) if len(sys.argv) > 3 else 60
spark = pipeline.session()

# %% Follow: every change of `orders` that is new since the last run, each exactly once
changes = out / "orders"
query = pipeline.cdc(spark, folder, changes, out / "checkpoint", space="orders")
query.awaitTermination()
orders = spark.read.parquet(str(changes))
print(f"{orders.count()} changes of orders so far")

# %% Join: what is in the two spaces now, as typed columns
customers = pipeline.table(spark, folder, "customers")
current = pipeline.table(spark, folder, "orders")
joined = current.join(customers, current["customer"] == customers["id"])
by_city = joined.groupBy("city").agg(
    sql.count("*").alias("orders"), sql.sum("price").alias("turnover")
)
by_city = by_city.orderBy("city").collect()
for row in by_city:
    print(f"{row['city']}: {row['orders']} orders, {row['turnover']} in all")

# %% Count: rows of the log by time and kind
moments = pipeline.scan(spark, folder, kinds="xlog", columns=["time", "type_name"])
width = f"{bucket_seconds} seconds"
counted = (
    moments.groupBy(sql.window("time", width)["start"].alias("start"), "type_name")
    .count()
    .orderBy("start")
    .collect()
)

# %% Plot
import matplotlib  # noqa: E402

matplotlib.use("Agg")
import matplotlib.dates as dates  # noqa: E402
from matplotlib import pyplot  # noqa: E402

starts = sorted({row["start"] for row in counted})
figure, axes = pyplot.subplots(figsize=(9, 4), layout="constrained")
bottom = [0] * len(starts)
for kind in sorted({row["type_name"] for row in counted}):
    found = {row["start"]: row["count"] for row in counted if row["type_name"] == kind}
    heights = [found.get(start, 0) for start in starts]
    axes.bar(starts, heights, bottom=bottom, width=0.8 * bucket_seconds / 86400, label=kind)
    bottom = [low + more for low, more in zip(bottom, heights, strict=True)]
axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M:%S"))
axes.set_ylim(0, 1.05 * max(bottom))
axes.set_xlabel("time (UTC)")
axes.set_ylabel("rows per minute" if bucket_seconds == 60 else f"rows per {bucket_seconds} s")
axes.set_title(f"{sum(bottom)} rows in the log of {folder.name}")
axes.legend(title="kind of row")
figure.savefig(out / "rows.png", dpi=110)
pyplot.close(figure)
print(f"wrote {out / 'rows.png'}")
