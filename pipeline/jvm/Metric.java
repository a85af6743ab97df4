package logweir.spark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** How many rows came through Python: beside a scan in Spark's page. */
public final class Metric extends CustomSumMetric {
    static final String NAME = "rowsFromPython";

    static CustomTaskMetric of(long value) {
        return new CustomTaskMetric() {
            @Override
            public String name() {
                return NAME;
            }

            @Override
            public long value() {
                return value;
            }
        };
    }

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public String description() {
        return "rows that came through Python";
    }
}
