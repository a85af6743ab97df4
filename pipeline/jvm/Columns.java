package logweir.spark;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * The wanted columns of a scan: how each is made of the rows of a batch. What a column holds is said
 * by `pipeline/columns.py` and `pipeline/arrow.py`, and for fields of a space by `pipeline/jobs/typed.py`.
 */
final class Columns {
    /** What of a row each column is made of. */
    private static final Map<String, int[]> PLAIN = Map.ofEntries(
            plain("file"), plain("kind"), plain("file_seq"), plain("crc_ok"), plain("damage"),
            plain("block_offset", Rows.BLOCK), plain("row_in_block", Rows.NUMBER),
            plain("type", Rows.TYPE), plain("type_name", Rows.TYPE),
            plain("replica_id", Rows.REPLICA_ID), plain("lsn", Rows.LSN), plain("tsn", Rows.TSN),
            plain("ts", Rows.TIMESTAMP), plain("time", Rows.TIMESTAMP), plain("flags", Rows.FLAGS),
            plain("space_id", Rows.SPACE_ID), plain("index_base", Rows.INDEX_BASE),
            plain("group_id", Rows.GROUP_ID), plain("index_id", Rows.INDEX_ID),
            plain("key", Rows.KEY), plain("tuple", Rows.TUPLE), plain("ops", Rows.OPS),
            plain("key_json", Rows.KEY), plain("tuple_json", Rows.TUPLE), plain("ops_json", Rows.OPS),
            plain("size", Rows.KEY, Rows.TUPLE, Rows.OPS),
            plain("header", Rows.START, Rows.BODY), plain("body", Rows.BODY, Rows.END));
    private static final Map<Long, String> TYPES = Map.of(
            1L, "SELECT", 2L, "INSERT", 3L, "REPLACE", 4L, "UPDATE", 5L, "DELETE", 9L, "UPSERT",
            12L, "NOP", 40L, "CONFIRM", 41L, "ROLLBACK", 30L, "RAFT");
    private static final Map<Long, String> LATER = Map.of(31L, "RAFT_PROMOTE", 32L, "RAFT_DEMOTE");
    private static final double MICROSECONDS = 0x1p63 / 1e6;

    private final String[] makers;
    private final Cells[] cells;
    private final Texts[] texts;
    private final Fields fields;
    private final long[][] own;
    private final long[] names = new long[128]; // spans of those of small types
    private final Map<Long, Long> others = new HashMap<>();
    private final Texts known = new Texts();
    private byte[] fileName;
    private boolean isLog;
    private int fileNumber;

    /** `wanted`: columns of the scan. */
    Columns(StructType wanted, Told told) {
        StructField[] shown = wanted.fields();
        makers = new String[shown.length];
        cells = new Cells[shown.length];
        texts = new Texts[shown.length];
        own = new long[shown.length][0];
        for (int i = 0; i < shown.length; i++) {
            makers[i] = told.maker(shown[i].name());
            cells[i] = new Cells(shown[i].dataType());
            texts[i] = new Texts();
        }
        fields = told.isTyped() ? new Fields(makers, cells, texts, told) : null;
    }

    private static Map.Entry<String, int[]> plain(String maker, int... from) {
        return Map.entry(maker, from);
    }

    /** What of each row has to be kept: where its block stands, and what columns are made of. */
    int[] kept() {
        IntStream found = Arrays.stream(makers).map(one -> PLAIN.getOrDefault(one, new int[0]))
                .flatMapToInt(Arrays::stream);
        IntStream always = fields == null ? IntStream.of(Rows.BLOCK) : IntStream.of(Rows.BLOCK, Rows.KEY, Rows.TUPLE);
        return IntStream.concat(always, found).distinct().toArray();
    }

    /** Whether all of these columns can be made here. */
    static boolean areKnown(StructType wanted, Told told) {
        for (String name : wanted.fieldNames()) {
            String maker = told.maker(name);
            if (!PLAIN.containsKey(maker) && !Fields.isKnown(maker)) {
                return false;
            }
        }
        return true;
    }

    void of(Told.Range range) {
        fileName = range.name().getBytes(StandardCharsets.UTF_8);
        isLog = range.isLog();
        fileNumber = range.number();
    }

    /** The columns of the rows. Throws `Handed` where one cannot be made: until that row all are. */
    Cells[] make(Rows rows) throws Handed {
        int count = rows.count;
        Handed first = null;
        for (int i = 0; i < makers.length; i++) {
            if (PLAIN.containsKey(makers[i])) {
                try {
                    make(i, rows, count);
                } catch (Handed one) {
                    first = first == null || one.row < first.row ? one : first;
                }
            }
        }
        if (fields != null) {
            try {
                fields.make(rows, count, own);
            } catch (Handed one) {
                first = first == null || one.row < first.row ? one : first;
            }
        }
        if (first != null) {
            throw first;
        }
        return cells;
    }

    Cells[] cells() {
        return cells;
    }

    static long[] room(long[][] own, int column, int count) {
        if (own[column].length < count) {
            own[column] = new long[Math.max(count, 1024)];
        }
        return own[column];
    }

    private void make(int column, Rows rows, int count) throws Handed {
        Cells to = cells[column];
        to.marks = null;
        to.data = rows.data;
        long[][] from = rows.columns;
        switch (makers[column]) {
            case "block_offset" -> to.numbers = from[Rows.BLOCK];
            case "row_in_block" -> to.numbers = from[Rows.NUMBER];
            case "type" -> fit(to, from[Rows.TYPE], count, 15);
            case "replica_id" -> to.numbers = from[Rows.REPLICA_ID];
            case "lsn" -> to.numbers = from[Rows.LSN];
            case "tsn" -> fit(to, from[Rows.TSN], count, 63);
            case "ts" -> to.numbers = from[Rows.TIMESTAMP];
            case "index_base" -> fit(to, from[Rows.INDEX_BASE], count, 15);
            case "group_id" -> fit(to, from[Rows.GROUP_ID], count, 31);
            case "index_id" -> fit(to, from[Rows.INDEX_ID], count, 31);
            case "key" -> to.numbers = from[Rows.KEY];
            case "tuple" -> to.numbers = from[Rows.TUPLE];
            case "ops" -> to.numbers = from[Rows.OPS];
            case "key_json" -> json(column, from[Rows.KEY], rows);
            case "tuple_json" -> json(column, from[Rows.TUPLE], rows);
            case "ops_json" -> json(column, from[Rows.OPS], rows);
            case "file" -> constant(column, fileName, count);
            case "kind" -> constant(column, (isLog ? "xlog" : "snap").getBytes(StandardCharsets.UTF_8), count);
            case "file_seq" -> same(column, fileNumber, count);
            case "crc_ok" -> same(column, 1, count);
            case "damage" -> same(column, 0, count);
            default -> {
                to.numbers = room(own, column, count);
                each(makers[column], to, rows, count);
            }
        }
    }

    private void each(String maker, Cells to, Rows rows, int count) throws Handed {
        long[][] from = rows.columns;
        long[] out = to.numbers;
        switch (maker) {
            case "flags" -> {
                for (int i = 0; i < count; i++) {
                    long value = from[Rows.FLAGS][i];
                    out[i] = value & (Rows.ODD - 1);
                    if ((value & Rows.ODD) != 0 || out[i] >> 15 != 0) {
                        throw new Handed(i);
                    }
                }
            }
            case "space_id" -> {
                for (int i = 0; i < count; i++) {
                    out[i] = from[Rows.SPACE_ID][i];
                    if (out[i] == Rows.ABSENT) {
                        mark(to, i, Cells.NONE, count);
                    } else if (out[i] < 0) {
                        throw new Handed(i);
                    }
                }
            }
            case "time" -> {
                for (int i = 0; i < count; i++) {
                    double seconds = Double.longBitsToDouble(from[Rows.TIMESTAMP][i]);
                    if (Math.abs(seconds) < MICROSECONDS) {
                        out[i] = (long) Math.rint(seconds * 1e6);
                    } else {
                        mark(to, i, Cells.NONE, count);
                    }
                }
            }
            case "size" -> {
                for (int i = 0; i < count; i++) {
                    out[i] = bytes(from[Rows.KEY][i]) + bytes(from[Rows.TUPLE][i]) + bytes(from[Rows.OPS][i]);
                }
            }
            case "header" -> {
                for (int i = 0; i < count; i++) {
                    out[i] = from[Rows.START][i] | from[Rows.BODY][i] << 32;
                }
            }
            case "body" -> {
                for (int i = 0; i < count; i++) {
                    out[i] = from[Rows.BODY][i] | from[Rows.END][i] << 32;
                }
            }
            case "type_name" -> {
                for (int i = 0; i < count; i++) {
                    long type = from[Rows.TYPE][i];
                    if (type < 0 || type >= names.length) {
                        out[i] = others.computeIfAbsent(type, this::named);
                    } else {
                        out[i] = names[(int) type] == 0 ? names[(int) type] = named(type) : names[(int) type];
                    }
                }
                to.data = known.out;
            }
            default -> throw new IllegalStateException(maker);
        }
    }

    private long named(long type) {
        int began = known.at;
        String name = TYPES.getOrDefault(type, LATER.get(type));
        for (char letter : (name == null ? Long.toUnsignedString(type) : name).toCharArray()) {
            known.one(letter);
        }
        return known.span(began);
    }

    private static long bytes(long span) {
        return (span >>> 32) - (span & 0xFFFFFFFFL);
    }

    static void mark(Cells to, int row, byte mark, int count) {
        if (to.marks == null) {
            to.marks = new byte[count];
        }
        to.marks[row] = mark;
    }

    private static void fit(Cells to, long[] values, int count, int bits) throws Handed {
        to.numbers = values;
        for (int i = 0; i < count; i++) {
            if (values[i] >>> bits != 0) {
                throw new Handed(i);
            }
        }
    }

    private void constant(int column, byte[] text, int count) {
        same(column, (long) text.length << 32, count);
        cells[column].data = text;
    }

    private void same(int column, long value, int count) {
        long[] out = room(own, column, count);
        Arrays.fill(out, 0, count, value);
        cells[column].numbers = out;
    }

    private void json(int column, long[] spans, Rows rows) throws Handed {
        Cells to = cells[column];
        Texts out = texts[column];
        out.at = 0;
        to.numbers = room(own, column, rows.count);
        try {
            for (int i = 0; i < rows.count; i++) {
                to.numbers[i] = 0;
                if (spans[i] != 0) {
                    int began = out.at;
                    out.of(rows.data, i);
                    out.json((int) spans[i], (int) (spans[i] >>> 32));
                    to.numbers[i] = out.span(began);
                }
            }
        } finally {
            to.data = out.out;
        }
    }
}
