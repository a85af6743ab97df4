package logweir.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;

/** Which rows the options of the scan want: `BatchBuilder.choose` of `pipeline/arrow.py`. */
final class Chosen {
    private final boolean isAll;
    private final boolean isLog;
    private final long[] after;
    private final long[] upto;
    private final double from;
    private final double to;
    private final long[] spaces;
    private final long[] types;

    Chosen(JsonNode told, boolean isLog) {
        this.isLog = isLog;
        isAll = told.isEmpty();
        after = longs(told.path("after"));
        upto = longs(told.path("upto"));
        from = told.has("from") ? told.get("from").asDouble() : Double.NaN;
        to = told.has("to") ? told.get("to").asDouble() : Double.NaN;
        spaces = longs(told.path("spaces"));
        types = longs(told.path("types"));
    }

    private static long[] longs(JsonNode told) {
        if (!told.isArray()) {
            return null;
        }
        long[] found = new long[told.size()];
        Arrays.setAll(found, i -> told.get(i).bigIntegerValue().longValue());
        return found;
    }

    /** `fields`: of a row whose replica id and lsn are bounded. */
    boolean wants(long[] fields) {
        if (isAll) {
            return true;
        }
        if (isLog) {
            int replica = (int) fields[Rows.REPLICA_ID];
            long lsn = fields[Rows.LSN];
            if (after != null && lsn <= after[replica] || upto != null && lsn > upto[replica]) {
                return false;
            }
        }
        double seconds = Double.longBitsToDouble(fields[Rows.TIMESTAMP]);
        if (!Double.isNaN(from) && !(seconds >= from) || !Double.isNaN(to) && !(seconds <= to)) {
            return false;
        }
        return isIn(spaces, fields[Rows.SPACE_ID]) && isIn(types, fields[Rows.TYPE]);
    }

    private static boolean isIn(long[] wanted, long value) {
        if (wanted == null) {
            return true;
        }
        for (long one : wanted) {
            if (one == value) {
                return true;
            }
        }
        return false;
    }
}
