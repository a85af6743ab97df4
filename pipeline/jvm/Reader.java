package logweir.spark;

import java.io.IOException;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.RowToColumnConverter;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * The batches of one task. At the first thing that is out of order, or that is too seldom to be made
 * here, what is left of the task goes to the reader in Python, which says what it is; so damage means
 * here what it means everywhere.
 */
final class Reader implements PartitionReader<ColumnarBatch> {
    private static final int PYTHON_ROWS = 4096;

    private final Told told;
    private final int index;
    private final StructType all;
    private final StructType wanted;
    private final PartitionReaderFactory python;
    private final List<Told.Range> ranges;
    private final Columns columns;
    private int range;
    private Blocks blocks;
    private Rows rows;
    private boolean isHanded;
    private PartitionReader<InternalRow> handed;
    private OnHeapColumnVector[] vectors;
    private RowToColumnConverter converter;
    private long fromPython;
    private ColumnarBatch batch;

    Reader(Told told, int index, StructType all, StructType wanted, PartitionReaderFactory python) {
        this.told = told;
        this.index = index;
        this.all = all;
        this.wanted = wanted;
        this.python = python;
        ranges = told.ranges();
        columns = new Columns(wanted, told);
        isHanded = !told.isReadable();
    }

    @Override
    public boolean next() throws IOException {
        while (!isHanded && range < ranges.size()) {
            if (fill()) {
                return true;
            }
        }
        return isHanded && convert();
    }

    /** Make the next batch. False where it would have no row: another range, or Python, is next. */
    private boolean fill() throws IOException {
        if (blocks == null) {
            Told.Range one = ranges.get(range);
            try {
                blocks = new Blocks(one, told.verifies());
            } catch (IOException error) {
                isHanded = true; // Python says which file is missing, and why
                return false;
            }
            if (!blocks.isSame()) {
                isHanded = true;
                return false;
            }
            rows = new Rows(told.chosen(one.isLog()), columns.kept());
            columns.of(one);
        }
        rows.clear();
        boolean goesOn = true;
        boolean isUnread = false;
        try {
            while (goesOn && rows.count < told.batchRows() && rows.size < told.batchBytes()) {
                goesOn = blocks.next(rows);
            }
        } catch (IOException error) {
            goesOn = false; // Python says which file, and why
            isUnread = true;
        }
        Cells[] made = columns.cells();
        try {
            columns.make(rows);
        } catch (Handed one) {
            blocks.at = rows.columns[Rows.BLOCK][one.row];
            rows.count = one.row - (int) behind(one.row);
            goesOn = true;
            isHanded = true;
        }
        if (!goesOn) {
            if (!isUnread && blocks.isEnd()) {
                blocks.close();
                blocks = null;
                range++;
            } else {
                isHanded = true;
            }
        }
        batch = new ColumnarBatch(made.clone(), rows.count);
        return rows.count > 0;
    }

    /** How many rows of the same block stand in front of a row of the batch. */
    private long behind(int row) {
        int first = row;
        while (first > 0 && rows.columns[Rows.BLOCK][first - 1] == rows.columns[Rows.BLOCK][row]) {
            first--;
        }
        return row - first;
    }

    private boolean convert() throws IOException {
        if (handed == null) {
            long at = blocks != null ? blocks.at : range < ranges.size() ? ranges.get(range).start() : 0;
            byte[] left = told.rest(range, at, wanted.fieldNames());
            handed = python.createReader(new PythonInputPartition(index, left));
            vectors = OnHeapColumnVector.allocateColumns(PYTHON_ROWS, all);
            converter = new RowToColumnConverter(all);
        }
        for (OnHeapColumnVector one : vectors) {
            one.reset();
        }
        int count = 0;
        while (count < PYTHON_ROWS && handed.next()) {
            converter.convert(handed.get(), vectors);
            count++;
        }
        fromPython += count;
        ColumnVector[] shown = new ColumnVector[wanted.size()];
        for (int i = 0; i < shown.length; i++) {
            shown[i] = vectors[all.fieldIndex(wanted.fields()[i].name())];
        }
        batch = new ColumnarBatch(shown, count);
        return count > 0;
    }

    @Override
    public ColumnarBatch get() {
        return batch;
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
        return new CustomTaskMetric[] {Metric.of(fromPython)};
    }

    @Override
    public void close() throws IOException {
        if (blocks != null) {
            blocks.close();
        }
        if (handed != null) {
            handed.close();
            for (OnHeapColumnVector one : vectors) {
                one.close();
            }
        }
    }
}
