package logweir.spark;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/** MsgPack in a buffer: what `wal/kernel.py` takes, with the same checks and the same limits. */
final class Pack {
    static final int DEPTH = 512; // limits.MSGPACK_DEPTH
    private static final VarHandle LONGS = big(long[].class);
    private static final VarHandle INTS = big(int[].class);
    private static final VarHandle SHORTS = big(short[].class);
    private static final long HIGH_BITS = 0x8080808080808080L;
    /** Bytes of a value by its first byte; 0 where a length or items follow, and for c1. */
    private static final byte[] SIZES = new byte[256];

    static {
        for (int first = 0; first < 256; first++) {
            if (first < 0x80 || first >= 0xE0) {
                SIZES[first] = 1;
            } else if (first >= 0xA0 && first < 0xC0) {
                SIZES[first] = (byte) (first - 0xA0 + 1);
            }
        }
        int[] fixed = {1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18};
        for (int i = 0; i < fixed.length; i++) {
            SIZES[0xC0 + i] = (byte) fixed[i];
        }
    }

    private Pack() {}

    private static VarHandle big(Class<?> numbers) {
        return MethodHandles.byteArrayViewVarHandle(numbers, ByteOrder.BIG_ENDIAN);
    }

    /** The big-endian number of 1, 2, 4 or 8 bytes. */
    static long load(byte[] data, int at, int width) {
        return switch (width) {
            case 1 -> data[at] & 0xFF;
            case 2 -> (short) SHORTS.get(data, at) & 0xFFFF;
            case 4 -> (int) INTS.get(data, at) & 0xFFFFFFFFL;
            default -> (long) LONGS.get(data, at);
        };
    }

    /** Where the unsigned integer ends; -1 if it is none or cut short. */
    static int uintEnd(byte[] data, int at, int end) {
        if (at >= end) {
            return -1;
        }
        int first = data[at] & 0xFF;
        if (first < 0x80) {
            return at + 1;
        }
        if (first < 0xCC || first > 0xCF) {
            return -1;
        }
        int stop = at + 1 + (1 << (first - 0xCC));
        return stop <= end ? stop : -1;
    }

    static long uint(byte[] data, int at, int stop) {
        return stop == at + 1 ? data[at] & 0xFF : load(data, at + 1, stop - at - 1);
    }

    /** Where the items of the map begin; -1 if it is none or cut short. */
    static int mapEnd(byte[] data, int at, int end) {
        if (at >= end) {
            return -1;
        }
        int first = data[at] & 0xFF;
        if (first >= 0x80 && first < 0x90) {
            return at + 1;
        }
        int stop = first == 0xDE ? at + 3 : at + 5;
        return (first == 0xDE || first == 0xDF) && stop <= end ? stop : -1;
    }

    /** How many items the array or map has whose items begin at `stop`. */
    static long count(byte[] data, int at, int stop) {
        return stop == at + 1 ? data[at] & 0x0F : load(data, at + 1, stop - at - 1);
    }

    static boolean isArray(byte[] data, int at) {
        int first = data[at] & 0xFF;
        return first >= 0x90 && first < 0xA0 || first == 0xDC || first == 0xDD;
    }

    /** Where the items of an array or map begin. */
    static int headEnd(byte[] data, int at) {
        int first = data[at] & 0xFF;
        return first < 0xA0 ? at + 1 : at + ((first & 1) != 0 ? 5 : 3);
    }

    /** Where the value ends; -1 if it is cut short, invalid or nested too deep. `owed`: room for
     * `DEPTH` numbers; `depth`: so many are open around it. */
    static int skip(byte[] data, int at, int end, long[] owed, int depth) {
        if (at < end) { // small, so that the compiler puts it where it is called
            int size = SIZES[data[at] & 0xFF];
            if (size != 0) {
                return size <= end - at ? at + size : -1;
            }
        }
        return skipMany(data, at, end, owed, depth);
    }

    private static int skipMany(byte[] data, int at, int end, long[] owed, int depth) {
        int bottom = depth;
        long left = 1;
        while (true) {
            while (left > 0 && at < end) {
                int size = SIZES[data[at] & 0xFF];
                if (size == 0) {
                    break;
                }
                at += size;
                left--;
            }
            while (left == 0) {
                if (depth == bottom) {
                    return at <= end ? at : -1;
                }
                depth--;
                left = owed[depth];
            }
            if (at >= end) {
                return -1;
            }
            int first = data[at] & 0xFF;
            int size = SIZES[first];
            if (size != 0) {
                continue;
            }
            left--;
            long items = 0;
            if (first < 0xA0) {
                at++;
                items = first < 0x90 ? (first & 0x0F) << 1 : first & 0x0F;
            } else if (first >= 0xDC) { // array 16, 32; map 16, 32
                size = (first & 1) != 0 ? 4 : 2;
                if (end - at <= size) {
                    return -1;
                }
                items = load(data, at + 1, size);
                if (first >= 0xDE) {
                    items <<= 1;
                }
                at += 1 + size;
            } else if (first == 0xC1) {
                return -1;
            } else { // bin, ext (and its type), str
                size = 1 << (first < 0xD9 ? (first - 0xC4) % 3 : first - 0xD9);
                if (end - at <= size) {
                    return -1;
                }
                long bytes = load(data, at + 1, size);
                if (first >= 0xC7 && first <= 0xC9) {
                    bytes++;
                }
                if (bytes > end - at - 1 - size) {
                    return -1;
                }
                at += 1 + size + (int) bytes;
            }
            if (items != 0) {
                if (items > end - at || depth == DEPTH) {
                    return -1;
                }
                owed[depth] = left;
                depth++;
                left = items;
            }
        }
    }

    /** Where the bytes of the string from `start` to `stop` begin; -1 if it is none. */
    static int stringHead(byte[] data, int start, int stop) {
        int first = data[start] & 0xFF;
        if (first >= 0xA0 && first < 0xC0) {
            return start + 1;
        }
        if (first < 0xD9 || first > 0xDB) {
            return -1;
        }
        return start + 1 + (1 << (first - 0xD9));
    }

    /** The same of a binary. */
    static int binaryHead(byte[] data, int start, int stop) {
        int first = data[start] & 0xFF;
        return first >= 0xC4 && first <= 0xC6 ? start + 1 + (1 << (first - 0xC4)) : -1;
    }

    /** The same of an extension; its type is the byte in front. */
    static int extensionHead(byte[] data, int start, int stop) {
        int first = data[start] & 0xFF;
        if (first >= 0xD4 && first <= 0xD8) {
            return start + 2;
        }
        return first >= 0xC7 && first <= 0xC9 ? start + 2 + (1 << (first - 0xC7)) : -1;
    }

    /** Whether these bytes are UTF-8, without surrogates and in its shortest form. */
    static boolean isText(byte[] data, int at, int stop) {
        while (at < stop) {
            if (stop - at >= 8 && ((long) LONGS.get(data, at) & HIGH_BITS) == 0) {
                at += 8;
                continue;
            }
            int first = data[at++] & 0xFF;
            if (first < 0x80) {
                continue;
            }
            int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
            if (first < 0xC2 || first > 0xF4 || stop - at < more) {
                return false;
            }
            int second = data[at] & 0xFF;
            int least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
            int most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
            if (second < least || second > most) {
                return false;
            }
            for (int i = 1; i < more; i++) {
                if ((data[at + i] & 0xC0) != 0x80) {
                    return false;
                }
            }
            at += more;
        }
        return true;
    }
}
