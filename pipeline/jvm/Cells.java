package logweir.spark;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.Arrays;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A column: a number per row, which is the value, the bits of a double, or a span of `data` where
 * the column is of texts, of bytes or of decimals by their texts (0 is null then). `marks`: what else is said of a number; null
 * where nothing is.
 */
final class Cells extends ColumnVector {
    static final byte NONE = 1, OVER = 2; // no value; over 2^63 - 1
    private static final BigInteger ABOVE = BigInteger.ONE.shiftLeft(64);

    long[] numbers;
    byte[] marks;
    byte[] data;
    private final boolean isSpanned;

    Cells(DataType type) {
        super(type);
        isSpanned = type instanceof StringType || type instanceof BinaryType
                || type instanceof DecimalType decimal && decimal.precision() == DecimalType.MAX_PRECISION();
    }

    /** Have so many rows without a value. */
    void clear(int count) {
        if (isSpanned) {
            Arrays.fill(numbers, 0, count, 0);
            return;
        }
        if (marks == null || marks.length < count) {
            marks = new byte[numbers.length];
        }
        Arrays.fill(marks, 0, count, NONE);
    }

    @Override
    public void close() {}

    @Override
    public boolean hasNull() {
        return isSpanned || marks != null;
    }

    @Override
    public int numNulls() {
        int found = 0;
        for (int i = 0; i < numbers.length; i++) {
            found += isNullAt(i) ? 1 : 0;
        }
        return found;
    }

    @Override
    public boolean isNullAt(int row) {
        return isSpanned ? numbers[row] == 0 : marks != null && marks[row] == NONE;
    }

    @Override
    public boolean getBoolean(int row) {
        return numbers[row] != 0;
    }

    @Override
    public byte getByte(int row) {
        return (byte) numbers[row];
    }

    @Override
    public short getShort(int row) {
        return (short) numbers[row];
    }

    @Override
    public int getInt(int row) {
        return (int) numbers[row];
    }

    @Override
    public long getLong(int row) {
        return numbers[row];
    }

    @Override
    public float getFloat(int row) {
        return (float) getDouble(row);
    }

    @Override
    public double getDouble(int row) {
        return Double.longBitsToDouble(numbers[row]);
    }

    @Override
    public Decimal getDecimal(int row, int precision, int scale) {
        if (isNullAt(row)) {
            return null;
        }
        if (isSpanned) {
            BigDecimal value = new BigDecimal(getUTF8String(row).toString());
            return Decimal.apply(value.setScale(scale), precision, scale);
        }
        if (marks != null && marks[row] == OVER) {
            BigInteger value = BigInteger.valueOf(numbers[row]).add(ABOVE);
            return Decimal.apply(new BigDecimal(value), precision, scale);
        }
        return Decimal.createUnsafe(numbers[row], precision, scale);
    }

    @Override
    public UTF8String getUTF8String(int row) {
        long span = numbers[row];
        int start = (int) span;
        return span == 0 ? null : UTF8String.fromBytes(data, start, (int) (span >>> 32) - start);
    }

    @Override
    public byte[] getBinary(int row) {
        long span = numbers[row];
        if (span == 0) {
            return null;
        }
        return Arrays.copyOfRange(data, (int) span, (int) (span >>> 32));
    }

    @Override
    public ColumnarArray getArray(int row) {
        throw new UnsupportedOperationException();
    }

    @Override
    public ColumnarMap getMap(int row) {
        throw new UnsupportedOperationException();
    }

    @Override
    public ColumnVector getChild(int ordinal) {
        throw new UnsupportedOperationException();
    }
}
