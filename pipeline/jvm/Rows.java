package logweir.spark;

import java.util.Arrays;

/**
 * Rows of some blocks of one file as columns of numbers: `wal/kernel.py` says what each holds. The
 * blocks' bytes stand one behind the other in `data`. A span is where a value begins and, 2^32
 * times, where it ends; 0 if it is absent.
 */
final class Rows {
    static final int TYPE = 0, REPLICA_ID = 1, GROUP_ID = 2, LSN = 3, TIMESTAMP = 4, TSN = 5, FLAGS = 6;
    static final int SPACE_ID = 7, INDEX_BASE = 8, START = 9, BODY = 10, KEY = 11, TUPLE = 12, OPS = 13;
    static final int INDEX_ID = 14, END = 15, BLOCK = 16, NUMBER = 17, COLUMNS = 18;
    static final long ABSENT = -1, ALONE = 1L << 63, ODD = 1L << 62, COMMIT = 1;
    static final int UPDATE = 4, NOP = 12, REPLICAS = 32;
    private static final int OTHER = 255;
    private static final int[] HEADER = {0, OTHER, 1, 3, 4, OTHER, OTHER, 2, 5, 6};
    private static final int[] IN_BODY = new int[0x29];

    static {
        Arrays.fill(IN_BODY, OTHER);
        IN_BODY[0x10] = SPACE_ID;
        IN_BODY[0x11] = INDEX_ID;
        IN_BODY[0x15] = INDEX_BASE;
        IN_BODY[0x20] = KEY;
        IN_BODY[0x21] = TUPLE;
        IN_BODY[0x28] = OPS;
    }

    byte[] data = new byte[1 << 16];
    int size;
    int count;
    /** Of those that are kept; the others are null. */
    final long[][] columns = new long[COLUMNS][];
    private final int[] kept;
    private final long[] fields = new long[COLUMNS];
    private final long[] owed = new long[Pack.DEPTH];
    private final Chosen chosen;

    /** `kept`: the columns that somebody reads. */
    Rows(Chosen chosen, int[] kept) {
        this.chosen = chosen;
        this.kept = kept;
        for (int one : kept) {
            columns[one] = new long[1024];
        }
    }

    void clear() {
        size = 0;
        count = 0;
    }

    /** Room for so many more bytes behind `size`. */
    void reserve(int more) {
        if (data.length - size < more) {
            data = Arrays.copyOf(data, Math.max(size + more, (int) Math.min(2L * data.length, 1 << 30)));
        }
    }

    /** Take the block whose rows stand from `size` to `end`. False, and nothing changes, where
     * something about them is not in order. */
    boolean take(long offset, int end) {
        int kept = count;
        int at = size;
        int number = 0;
        boolean open = false;
        long tsn = 0;
        while (at < end) {
            fields[START] = at;
            at = header(at, end);
            if (at >= 0) {
                at = body(at, end);
            }
            if (at < 0 || open && fields[TSN] != tsn) {
                count = kept;
                return false;
            }
            open = (fields[FLAGS] & COMMIT) == 0;
            tsn = fields[TSN];
            if (fields[REPLICA_ID] < 0 || fields[REPLICA_ID] >= REPLICAS || fields[LSN] < 0) {
                count = kept;
                return false;
            }
            if (chosen.wants(fields)) {
                fields[END] = at;
                fields[BLOCK] = offset;
                fields[NUMBER] = number;
                add();
            }
            number++;
        }
        if (open || number == 0) {
            count = kept;
            return false;
        }
        size = end;
        return true;
    }

    private void add() {
        if (count == columns[BLOCK].length) {
            for (int one : kept) {
                columns[one] = Arrays.copyOf(columns[one], 2 * count);
            }
        }
        if (fields[TYPE] == UPDATE) { // what stands as its tuple is its operations
            if (fields[TUPLE] != 0) {
                fields[OPS] = fields[TUPLE];
            }
            fields[TUPLE] = 0;
        }
        for (int one : kept) {
            columns[one][count] = fields[one];
        }
        count++;
    }

    private int header(int at, int end) {
        byte[] data = this.data;
        int stop = Pack.mapEnd(data, at, end);
        if (stop < 0) {
            return -1;
        }
        long left = Pack.count(data, at, stop);
        at = stop;
        fields[TYPE] = fields[REPLICA_ID] = fields[GROUP_ID] = fields[LSN] = 0;
        fields[TIMESTAMP] = fields[TSN] = fields[FLAGS] = 0;
        int seen = 0;
        boolean odd = false;
        for (; left > 0; left--) {
            stop = Pack.uintEnd(data, at, end);
            if (stop < 0) {
                return -1;
            }
            long key = Pack.uint(data, at, stop);
            at = stop;
            int field = key >= 0 && key < 0x0A ? HEADER[(int) key] : OTHER;
            if (field == TIMESTAMP) {
                if (end - at < 9 || (data[at] & 0xFF) != 0xCB) {
                    return -1;
                }
                fields[TIMESTAMP] = Pack.load(data, at + 1, 8);
                at += 9;
            } else if (field == OTHER) {
                at = key >= 0 && key < 0x53 ? Pack.skip(data, at, end, owed, 1) : -1;
                if (at < 0) {
                    return -1;
                }
                odd = true;
            } else {
                stop = Pack.uintEnd(data, at, end);
                if (stop < 0) {
                    return -1;
                }
                fields[field] = Pack.uint(data, at, stop);
                seen |= 1 << field;
                at = stop;
            }
        }
        if ((seen & 1 << TYPE) == 0) {
            return -1;
        }
        fields[TSN] = fields[LSN] - fields[TSN];
        long flags = fields[FLAGS] & (ODD - 1);
        odd |= flags != fields[FLAGS];
        if ((seen & 1 << TSN) == 0) {
            odd |= (flags & COMMIT) != 0;
            flags |= COMMIT | ALONE;
        }
        fields[FLAGS] = odd ? flags | ODD : flags;
        return at;
    }

    private int body(int at, int end) {
        byte[] data = this.data;
        fields[SPACE_ID] = ABSENT;
        fields[INDEX_BASE] = fields[KEY] = fields[TUPLE] = fields[OPS] = fields[INDEX_ID] = 0;
        fields[BODY] = at;
        if (fields[TYPE] == NOP) {
            return at;
        }
        int stop = Pack.mapEnd(data, at, end);
        if (stop < 0) {
            return -1;
        }
        long left = Pack.count(data, at, stop);
        at = stop;
        for (; left > 0; left--) {
            stop = Pack.uintEnd(data, at, end);
            if (stop < 0) {
                return -1;
            }
            long key = Pack.uint(data, at, stop);
            at = stop;
            int field = key >= 0 && key < 0x29 ? IN_BODY[(int) key] : OTHER;
            if (field == SPACE_ID || field == INDEX_BASE || field == INDEX_ID) {
                stop = Pack.uintEnd(data, at, end);
                if (stop < 0) {
                    return -1;
                }
                fields[field] = Pack.uint(data, at, stop);
            } else {
                stop = Pack.skip(data, at, end, owed, 1);
                if (stop < 0) {
                    return -1;
                }
                if (field != OTHER) {
                    if (!Pack.isArray(data, at)) {
                        return -1;
                    }
                    fields[field] = (long) stop << 32 | at;
                }
            }
            at = stop;
        }
        return at;
    }
}
