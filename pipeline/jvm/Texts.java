package logweir.spark;

import java.math.BigDecimal;
import java.math.MathContext;
import java.math.RoundingMode;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Texts one behind the other in `out`: MsgPack values as JSON (`wal/render.py` says how),
 * decimals and UUIDs. What is too seldom for a place here is `Handed` to Python, as
 * `pipeline/jsonkernel.py` hands it to `wal.render`.
 */
final class Texts {
    private static final int NESTED = 64, KEYS = 32, DIGITS = 38, SCALE = 76;
    private static final byte[] LETTERS =
            ascii("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/");
    private static final byte[] HEX = ascii("0123456789abcdef");
    private static final byte[] ESCAPES = Arrays.copyOf(ascii("\0\0\0\0\0\0\0\0btn\0fr"), 32);
    private static final byte[] NULL = ascii("null"), TRUE = ascii("true"), FALSE = ascii("false");
    private static final byte[] BIN = ascii("{\"$bin\": \""), STR = ascii("{\"$str\": \"");
    private static final byte[] UUID = ascii("{\"$uuid\": \""), DECIMAL = ascii("{\"$decimal\": \"");
    private static final byte[] EXT = ascii("{\"$ext\": ["), FLOAT = ascii("{\"$float\": \"");
    private static final byte[] COMMA = ascii(", "), CLOSE = ascii("\"}"), UNICODE = ascii("\\u00");

    byte[] out = new byte[1 << 12];
    int at;
    private byte[] raw;
    private int row;
    private final long[] owed = new long[Pack.DEPTH];

    private static byte[] ascii(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }

    /** Write values of this buffer, for that row of the batch. */
    void of(byte[] data, int row) {
        raw = data;
        this.row = row;
    }

    /** The span of what was written since `began`. */
    long span(int began) {
        return (long) at << 32 | began;
    }

    private void reserve(int more) {
        if (out.length - at < more) {
            out = Arrays.copyOf(out, Math.max(at + more, 2 * out.length));
        }
    }

    void json(int at, int stop) throws Handed {
        json(at, stop, 0);
    }

    private void json(int from, int stop, int depth) throws Handed {
        int first = raw[from] & 0xFF;
        if (first < 0x80) {
            number(first);
        } else if (first >= 0xE0) {
            number((byte) first);
        } else if (first >= 0xA0 && first < 0xC0 || first >= 0xD9 && first <= 0xDB) {
            string(from, stop);
        } else if (Pack.isArray(raw, from)) {
            array(from, stop, depth);
        } else if (first < 0x90 || first >= 0xDE) {
            map(from, stop, depth);
        } else if (first == 0xC0) {
            word(NULL);
        } else if (first == 0xC2 || first == 0xC3) {
            word(first == 0xC3 ? TRUE : FALSE);
        } else if (first >= 0xCC && first <= 0xCF) {
            word(ascii(Long.toUnsignedString(Pack.load(raw, from + 1, stop - from - 1))));
        } else if (first >= 0xD0 && first <= 0xD3) {
            int unused = 64 - 8 * (stop - from - 1);
            number(Pack.load(raw, from + 1, stop - from - 1) << unused >> unused);
        } else if (first == 0xCA || first == 0xCB) {
            floating(from);
        } else if (first >= 0xC4 && first <= 0xC6) {
            word(BIN);
            base64(Pack.binaryHead(raw, from, stop), stop);
            word(CLOSE);
        } else {
            extension(from, stop);
        }
    }

    private void floating(int from) {
        double value = (raw[from] & 0xFF) == 0xCA
                ? Float.intBitsToFloat((int) Pack.load(raw, from + 1, 4))
                : Double.longBitsToDouble(Pack.load(raw, from + 1, 8));
        if (Double.isNaN(value) || Double.isInfinite(value)) {
            word(FLOAT);
            word(ascii(Double.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf"));
            word(CLOSE);
        } else {
            word(ascii(shortest(value)));
        }
    }

    /** The text that Python's `repr` has: as few digits as bring the same number back. */
    static String shortest(double value) {
        if (value == 0) {
            return 1 / value < 0 ? "-0.0" : "0.0";
        }
        if (value == Math.rint(value) && Math.abs(value) < 1e15) {
            return (long) value + ".0";
        }
        BigDecimal exact = new BigDecimal(value);
        BigDecimal found = null;
        int least = Math.abs(value) < Double.MIN_NORMAL ? 1 : 15;
        for (int digits = least; digits <= 17 && found == null; digits++) {
            for (RoundingMode mode : new RoundingMode[] {RoundingMode.HALF_EVEN, RoundingMode.UP}) {
                BigDecimal rounded = exact.round(new MathContext(digits, mode));
                if (rounded.doubleValue() == value) { // up: a power of 2 has more room above
                    found = rounded;
                    break;
                }
            }
        }
        String digits = found.unscaledValue().abs().toString();
        int point = digits.length() - found.scale();
        int kept = digits.length();
        while (kept > 1 && digits.charAt(kept - 1) == '0') {
            kept--;
        }
        digits = digits.substring(0, kept);
        StringBuilder text = new StringBuilder(value < 0 ? "-" : "");
        if (point > 16 || point <= -4) {
            text.append(digits.charAt(0));
            if (kept > 1) {
                text.append('.').append(digits, 1, kept);
            }
            int power = point - 1;
            text.append('e').append(power < 0 ? '-' : '+');
            return text.append(Math.abs(power) < 10 ? "0" : "").append(Math.abs(power)).toString();
        }
        if (point <= 0) {
            return text.append("0.").append("0".repeat(-point)).append(digits).toString();
        }
        if (point >= kept) {
            return text.append(digits).append("0".repeat(point - kept)).append(".0").toString();
        }
        return text.append(digits, 0, point).append('.').append(digits, point, kept).toString();
    }

    private void string(int from, int stop) {
        int head = Pack.stringHead(raw, from, stop);
        if (Pack.isText(raw, head, stop)) {
            quoted(head, stop);
        } else {
            word(STR);
            base64(head, stop);
            word(CLOSE);
        }
    }

    private void extension(int from, int stop) throws Handed {
        int head = Pack.extensionHead(raw, from, stop);
        int code = raw[head - 1];
        if (code == 2 && stop - head == 16) {
            word(UUID);
            uuid(head);
            word(CLOSE);
        } else if (code == 1) {
            word(DECIMAL);
            decimal(head, stop);
            word(CLOSE);
        } else {
            word(EXT);
            number(code);
            word(COMMA);
            one('"');
            base64(head, stop);
            one('"');
            one(']');
            one('}');
        }
    }

    private void array(int from, int stop, int depth) throws Handed {
        if (depth == NESTED) {
            throw new Handed(row);
        }
        int head = Pack.headEnd(raw, from);
        long items = Pack.count(raw, from, head);
        one('[');
        for (long i = 0; i < items; i++) {
            if (i > 0) {
                word(COMMA);
            }
            int end = Pack.skip(raw, head, stop, owed, 0);
            json(head, end, depth + 1);
            head = end;
        }
        one(']');
    }

    private void map(int from, int stop, int depth) throws Handed {
        int next = Pack.headEnd(raw, from);
        int items = (int) Math.min(Pack.count(raw, from, next), KEYS + 1);
        if (depth == NESTED || items > KEYS) {
            throw new Handed(row);
        }
        int[] keys = new int[2 * items];
        one('{');
        for (int i = 0; i < items; i++) {
            int end = Pack.skip(raw, next, stop, owed, 0);
            int head = Pack.stringHead(raw, next, end);
            if (head < 0 || !Pack.isText(raw, head, end) || items == 1 && end > head && raw[head] == '$') {
                throw new Handed(row);
            }
            for (int other = 0; other < i; other++) {
                if (Arrays.equals(raw, head, end, raw, keys[2 * other], keys[2 * other + 1])) {
                    throw new Handed(row);
                }
            }
            keys[2 * i] = head;
            keys[2 * i + 1] = end;
            if (i > 0) {
                word(COMMA);
            }
            quoted(head, end);
            one(':');
            one(' ');
            next = Pack.skip(raw, end, stop, owed, 0);
            json(end, next, depth + 1);
        }
        one('}');
    }

    /** An item of an object: a number as its key, and the value. */
    void item(int number, int from, int stop, boolean isFirst) throws Handed {
        if (isFirst) {
            one('{');
        } else {
            word(COMMA);
        }
        one('"');
        number(number);
        one('"');
        one(':');
        one(' ');
        json(from, stop, 0);
    }

    // --- pieces -----------------------------------------------------------------------------------

    void one(char letter) {
        reserve(1);
        out[at++] = (byte) letter;
    }

    private void word(byte[] bytes) {
        reserve(bytes.length);
        System.arraycopy(bytes, 0, out, at, bytes.length);
        at += bytes.length;
    }

    private void number(long value) {
        if (value < 0 || value >= 100) {
            word(ascii(Long.toString(value)));
            return;
        }
        if (value >= 10) {
            one((char) ('0' + value / 10));
        }
        one((char) ('0' + value % 10));
    }

    private void quoted(int from, int stop) {
        reserve(6 * (stop - from) + 2);
        byte[] to = out;
        int put = at;
        to[put++] = '"';
        for (int i = from; i < stop; i++) {
            byte letter = raw[i];
            if (letter < 0 || letter >= 0x20 && letter != '"' && letter != '\\') {
                to[put++] = letter;
                continue;
            }
            int known = letter >= 0x20 ? letter : ESCAPES[letter];
            if (known != 0) {
                to[put++] = '\\';
                to[put++] = (byte) known;
            } else {
                System.arraycopy(UNICODE, 0, to, put, 4);
                to[put + 4] = HEX[letter >> 4];
                to[put + 5] = HEX[letter & 0x0F];
                put += 6;
            }
        }
        to[put++] = '"';
        at = put;
    }

    private void base64(int from, int stop) {
        reserve(4 * ((stop - from + 2) / 3));
        while (from < stop) {
            int left = stop - from;
            int bits = (raw[from] & 0xFF) << 16;
            bits |= left > 1 ? (raw[from + 1] & 0xFF) << 8 : 0;
            bits |= left > 2 ? raw[from + 2] & 0xFF : 0;
            out[at++] = LETTERS[bits >> 18];
            out[at++] = LETTERS[bits >> 12 & 63];
            out[at++] = left > 1 ? LETTERS[bits >> 6 & 63] : (byte) '=';
            out[at++] = left > 2 ? LETTERS[bits & 63] : (byte) '=';
            from += 3;
        }
    }

    /** The text of the UUID whose 16 bytes stand there. */
    void uuid(int from) {
        for (int i = 0; i < 16; i++) {
            if (i == 4 || i == 6 || i == 8 || i == 10) {
                one('-');
            }
            one((char) HEX[raw[from + i] >> 4 & 0x0F]);
            one((char) HEX[raw[from + i] & 0x0F]);
        }
    }

    /** Whether the text from `began` on is a number with at most so many digits behind the point. */
    boolean fits(int began, int scale) {
        BigDecimal value = new BigDecimal(new String(out, began, at - began, StandardCharsets.US_ASCII));
        BigDecimal least = value.stripTrailingZeros();
        return value.signum() == 0 || least.scale() <= scale && least.precision() - least.scale() + scale <= DIGITS;
    }

    /** The text that Python has for a decimal (`wal/mp.py` has its bytes). */
    void decimal(int from, int stop) throws Handed {
        int first = from < stop ? raw[from] & 0xFF : 0;
        int end = first < 0x80 || first >= 0xE0 ? from + 1 : -1;
        if (end < 0 && first >= 0xCC && first <= 0xD3) {
            end = from + 1 + (1 << (first & 3));
        }
        if (end < 0 || end >= stop) {
            throw new Handed(row);
        }
        long scale = (byte) first;
        if (end > from + 1) {
            scale = Pack.load(raw, from + 1, end - from - 1);
            int unused = 64 - 8 * (end - from - 1);
            scale = first >= 0xD0 ? scale << unused >> unused : scale < 0 ? Long.MAX_VALUE : scale;
        }
        int sign = raw[stop - 1] & 0x0F;
        StringBuilder digits = new StringBuilder();
        for (int i = 0; i < 2 * (stop - end) - 1; i++) {
            int nibble = raw[end + (i >> 1)] >> ((i & 1) != 0 ? 0 : 4) & 0x0F;
            if (nibble > 9) {
                throw new Handed(row);
            }
            if (digits.length() > 0 || nibble != 0) {
                digits.append((char) ('0' + nibble));
            }
        }
        if (sign < 10 || digits.length() > DIGITS || scale > SCALE || scale < -SCALE) {
            throw new Handed(row);
        }
        if (digits.length() == 0) {
            digits.append('0');
        }
        int point = digits.length() - (int) scale;
        int shown = scale >= 0 && point > -6 ? point : 1;
        StringBuilder text = new StringBuilder(sign == 11 || sign == 13 ? "-" : "");
        if (shown <= 0) {
            text.append("0.").append("0".repeat(-shown)).append(digits);
        } else if (shown < digits.length()) {
            text.append(digits, 0, shown).append('.').append(digits, shown, digits.length());
        } else {
            text.append(digits);
        }
        if (point != shown) {
            text.append('E').append(point < shown ? '-' : '+').append(Math.abs(shown - point));
        }
        word(ascii(text.toString()));
    }
}
