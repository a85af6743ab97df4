package logweir.spark;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The format `logweir` where this jar is on the class path. Everything but the reading of batches is
 * that of the source in Python (`pipeline/source.py`), which has the same name: options, columns,
 * plans, streams and sinks. Spark prefers a source in Java to one in Python.
 */
public final class Provider implements TableProvider, DataSourceRegister {
    private static final String FORMAT = "logweir", REGISTERED = "logweir_python";
    private PythonDataSourceV2 source;
    private String name;

    /** That of the session: registered under a name of its own, since the format's is taken, or found. */
    private PythonDataSourceV2 python() {
        if (source == null) {
            boolean isRegistered =
                    SparkSession.active().sessionState().dataSourceManager().dataSourceExists(REGISTERED);
            name = isRegistered ? REGISTERED : FORMAT;
            source = new PythonDataSourceV2();
            source.setShortName(name);
        }
        return source;
    }

    @Override
    public String shortName() {
        return FORMAT;
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return python().inferSchema(options);
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new Log((PythonTable) python().getTable(schema, partitioning, properties));
    }

    private final class Log implements Table, SupportsRead, SupportsWrite {
        private final PythonTable table;

        Log(PythonTable table) {
            this.table = table;
        }

        @Override
        public String name() {
            return table.name();
        }

        @Override
        @Deprecated
        public StructType schema() {
            return table.schema();
        }

        @Override
        public Set<TableCapability> capabilities() {
            return table.capabilities();
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new Scanned(python(), name, table.schema(), options);
        }

        @Override
        public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
            return table.newWriteBuilder(info);
        }
    }
}
