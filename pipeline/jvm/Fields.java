package logweir.spark;

import java.util.Arrays;
import java.util.List;

/**
 * The fields of a space's tuples as columns, as `pipeline/jobs/typed.py` and `pipeline/typedkernel.py`
 * have them. Of a row without tuple its key has the fields of the primary key.
 */
final class Fields {
    static final String REST = "rest";
    private static final List<String> KINDS = List.of(
            "long", "decimal", "double", "string", "binary", "json", "decimal text", "uuid text", "boolean");
    private static final int LONG = 0, DECIMAL = 1, DOUBLE = 2, STRING = 3, BINARY = 4, JSON = 5;
    private static final int DECIMAL_TEXT = 6, UUID_TEXT = 7, BOOLEAN = 8, FIXED = 9; // and its scale
    private static final String FIXED_NAME = "fixed ";

    private final Cells[] cells;
    private final Texts[] texts;
    private final int[] kinds; // of each field; all where `_rest` is wanted, else of those with a column
    private final int[] columns; // of each field, -1 for none
    private final int[] key; // field of each part of the primary key, -1 for none
    private final int width;
    private final int rest; // column, -1 for none
    private final Cells unseen;
    private final Texts dropped = new Texts();
    private final long[] owed = new long[Pack.DEPTH];

    Fields(String[] makers, Cells[] cells, Texts[] texts, Told told) {
        this.cells = cells;
        this.texts = texts;
        List<String> fields = told.fields();
        width = fields.size();
        kinds = new int[width];
        columns = new int[width];
        rest = Arrays.asList(makers).indexOf(REST);
        key = told.key();
        for (int field = 0; field < width; field++) {
            kinds[field] = kind(fields.get(field));
            columns[field] = Arrays.asList(makers).indexOf(Told.maker(field, fields.get(field)));
        }
        unseen = new Cells(org.apache.spark.sql.types.DataTypes.LongType);
    }

    static boolean isKnown(String maker) {
        return maker.equals(REST) || maker.startsWith("field ") && kind(maker.split(" ", 3)[2]) >= 0;
    }

    private static int kind(String name) {
        boolean isFixed = name.startsWith(FIXED_NAME);
        return isFixed ? FIXED + Integer.parseInt(name.substring(FIXED_NAME.length())) : KINDS.indexOf(name);
    }

    /** The columns of the tuples of the rows. `own`: numbers of each column. */
    void make(Rows rows, int count, long[][] own) throws Handed {
        byte[] data = rows.data;
        for (int field = -1; field < width; field++) {
            int column = field < 0 ? rest : columns[field];
            if (column >= 0) {
                Columns.room(own, column, count);
                start(cells[column], texts[column], own[column], count);
                cells[column].data = data;
            }
        }
        unseen.numbers = unseen.numbers == null || unseen.numbers.length < count ? new long[count] : unseen.numbers;
        unseen.marks = null;
        long[] misfits = new long[width];
        try {
            for (int row = 0; row < count; row++) {
                long tuple = rows.columns[Rows.TUPLE][row];
                long span = tuple != 0 ? tuple : rows.columns[Rows.KEY][row];
                if (span != 0) {
                    take(data, span, tuple == 0, row, misfits);
                }
            }
        } finally {
            for (int field = -1; field < width; field++) {
                int column = field < 0 ? rest : columns[field];
                if (column >= 0 && texts[column].at > 0) {
                    cells[column].data = texts[column].out;
                }
            }
        }
    }

    private static void start(Cells to, Texts text, long[] numbers, int count) {
        text.at = 0;
        to.numbers = numbers;
        to.clear(count);
    }

    private void take(byte[] data, long span, boolean isKey, int row, long[] misfits) throws Handed {
        int at = (int) span;
        int end = (int) (span >>> 32);
        int head = Pack.headEnd(data, at);
        long items = Pack.count(data, at, head);
        at = head;
        int wrong = 0;
        for (int i = 0; i < items; i++) {
            int field = !isKey ? i : i < key.length ? key[i] : -1;
            if (!isKey && i >= width) {
                break;
            }
            int stop = Pack.skip(data, at, end, owed, 0);
            if (field >= 0 && (columns[field] >= 0 || rest >= 0) && (data[at] & 0xFF) != 0xC0) {
                if (!put(field, data, at, stop, row)) {
                    misfits[wrong++] = (long) field << 32 | at;
                }
            }
            at = stop;
        }
        if (rest >= 0 && (wrong > 0 || !isKey && items > width)) {
            Texts out = texts[rest];
            int began = out.at;
            out.of(data, row);
            for (int i = 0; i < wrong; i++) {
                int from = (int) misfits[i];
                out.item((int) (misfits[i] >>> 32), from, Pack.skip(data, from, end, owed, 0), i == 0);
            }
            for (int field = width; !isKey && field < items; field++) {
                int stop = Pack.skip(data, at, end, owed, 0);
                out.item(field, at, stop, wrong == 0 && field == width);
                at = stop;
            }
            out.one('}');
            cells[rest].numbers[row] = out.span(began);
        }
    }

    /** Write a value into its column. False where it is none of that column. */
    private boolean put(int field, byte[] data, int at, int stop, int row) throws Handed {
        int column = columns[field];
        Cells to = column < 0 ? unseen : cells[column];
        int first = data[at] & 0xFF;
        int kind = kinds[field];
        switch (kind) {
            case STRING, BINARY -> {
                int head = kind == STRING ? Pack.stringHead(data, at, stop) : Pack.binaryHead(data, at, stop);
                if (head < 0 || kind == STRING && !Pack.isText(data, head, stop)) {
                    return false;
                }
                to.numbers[row] = (long) stop << 32 | head;
            }
            case BOOLEAN -> {
                if (first != 0xC2 && first != 0xC3) {
                    return false;
                }
                number(to, row, first & 1);
            }
            case DOUBLE -> {
                if (first == 0xCB) {
                    number(to, row, Pack.load(data, at + 1, 8));
                } else if (first == 0xCA) {
                    float value = Float.intBitsToFloat((int) Pack.load(data, at + 1, 4));
                    number(to, row, Double.doubleToRawLongBits(value));
                } else {
                    return false;
                }
            }
            case LONG, DECIMAL -> {
                if (first < 0x80 || first >= 0xE0) {
                    number(to, row, (byte) first);
                } else if (first >= 0xCC && first <= 0xCF) {
                    long value = Pack.load(data, at + 1, stop - at - 1);
                    if (value < 0 && kind == LONG) {
                        return false;
                    }
                    number(to, row, value);
                    if (value < 0 && column >= 0) {
                        to.marks[row] = Cells.OVER;
                    }
                } else if (first >= 0xD0 && first <= 0xD3) {
                    int unused = 64 - 8 * (stop - at - 1);
                    number(to, row, Pack.load(data, at + 1, stop - at - 1) << unused >> unused);
                } else {
                    return false;
                }
            }
            default -> {
                return text(kind, column < 0 ? dropped : texts[column], to, data, at, stop, row);
            }
        }
        return true;
    }

    private static void number(Cells to, int row, long value) {
        to.numbers[row] = value;
        if (to.marks != null) {
            to.marks[row] = 0;
        }
    }

    private boolean text(int kind, Texts out, Cells to, byte[] data, int at, int stop, int row) throws Handed {
        if (out == dropped) {
            out.at = 0;
        }
        int began = out.at;
        out.of(data, row);
        if (kind == JSON) {
            out.json(at, stop);
        } else {
            int first = data[at] & 0xFF;
            boolean isExtension = first >= 0xC7 && first <= 0xC9 || first >= 0xD4 && first <= 0xD8;
            int head = isExtension ? Pack.extensionHead(data, at, stop) : -1;
            if (head < 0 || data[head - 1] != (kind == UUID_TEXT ? 2 : 1)
                    || kind == UUID_TEXT && stop - head != 16) {
                return false;
            }
            if (kind == UUID_TEXT) {
                out.uuid(head);
            } else {
                out.decimal(head, stop);
                if (kind >= FIXED && !out.fits(began, kind - FIXED)) {
                    out.at = began;
                    return false;
                }
            }
        }
        to.numbers[row] = out.span(began);
        return true;
    }
}
