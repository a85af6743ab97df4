package logweir.spark;

import java.io.IOException;
import java.util.OptionalLong;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.ProjectingInternalRow;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.slf4j.LoggerFactory;
import scala.jdk.javaapi.CollectionConverters;

/**
 * One scan: planned in Python, once for each loaded DataFrame, and read here where all wanted columns
 * can be made here. Columns are pruned; filters are Spark's.
 */
final class Scanned implements ScanBuilder, SupportsPushDownRequiredColumns, Scan, Batch, SupportsReportStatistics {
    private final PythonScan python;
    private final StructType all;
    private StructType wanted;
    private PythonInputPartition[] planned;
    private Batch batch;
    private boolean isHere;
    private long size; // of all tasks' files; negative where one does not tell it

    Scanned(PythonDataSourceV2 source, String format, StructType all, CaseInsensitiveStringMap options) {
        python = new PythonScan(source, format, all, options, new Filter[0]);
        this.all = all;
        wanted = all;
    }

    @Override
    public void pruneColumns(StructType required) {
        wanted = required;
    }

    @Override
    public Scan build() {
        return this;
    }

    @Override
    public StructType readSchema() {
        return wanted;
    }

    @Override
    public String description() {
        return python.description();
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        return python.toMicroBatchStream(checkpoint);
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
        return new CustomMetric[] {new Metric()};
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    /** The tasks, as Python planned them. */
    @Override
    public InputPartition[] planInputPartitions() {
        if (planned == null) {
            batch = python.toBatch();
            InputPartition[] found = batch.planInputPartitions();
            planned = new PythonInputPartition[found.length];
            boolean areKnown = true;
            boolean isAny = false;
            for (int i = 0; i < found.length; i++) {
                planned[i] = (PythonInputPartition) found[i];
                Told told = Told.of(planned[i].pickedPartition());
                areKnown = areKnown && told != null && Columns.areKnown(wanted, told);
                isAny = isAny || told != null && told.isReadable();
                size = told == null ? -1 : size < 0 ? size : size + told.size();
            }
            isHere = areKnown && isAny;
            if (!isHere) {
                LoggerFactory.getLogger("logweir").info("a scan is read by Python: {}", wanted.simpleString());
            }
        }
        return planned.clone();
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        planInputPartitions();
        return new Factory(batch.createReaderFactory(), all, wanted, isHere);
    }

    @Override
    public Statistics estimateStatistics() {
        planInputPartitions();
        return new Statistics() {
            @Override
            public OptionalLong sizeInBytes() {
                return size < 0 ? OptionalLong.empty() : OptionalLong.of(size);
            }

            @Override
            public OptionalLong numRows() {
                return OptionalLong.empty();
            }
        };
    }

    /** Travels to the tasks. `isHere`: they are read here, else all of them in Python. */
    private record Factory(PartitionReaderFactory python, StructType all, StructType wanted, boolean isHere)
            implements PartitionReaderFactory {
        @Override
        public boolean supportColumnarReads(InputPartition partition) {
            return isHere;
        }

        @Override
        public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
            PythonInputPartition one = (PythonInputPartition) partition;
            return new Reader(Told.of(one.pickedPartition()), one.index(), all, wanted, python);
        }

        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            PythonInputPartition one = (PythonInputPartition) partition;
            Told told = Told.of(one.pickedPartition());
            if (told != null) {
                one = new PythonInputPartition(one.index(), told.rest(0, 0, wanted.fieldNames()));
            }
            PartitionReader<InternalRow> found = python.createReader(one);
            return wanted.equals(all) ? found : new Pruned(found, all, wanted);
        }
    }

    private static final class Pruned implements PartitionReader<InternalRow> {
        private final PartitionReader<InternalRow> from;
        private final ProjectingInternalRow row;

        Pruned(PartitionReader<InternalRow> from, StructType all, StructType wanted) {
            this.from = from;
            java.util.List<Object> places = new java.util.ArrayList<>();
            for (String name : wanted.fieldNames()) {
                places.add(all.fieldIndex(name));
            }
            row = ProjectingInternalRow.apply(wanted, CollectionConverters.asScala(places).toIndexedSeq());
        }

        @Override
        public boolean next() throws IOException {
            return from.next();
        }

        @Override
        public InternalRow get() {
            row.project(from.get());
            return row;
        }

        @Override
        public void close() throws IOException {
            from.close();
        }
    }
}
