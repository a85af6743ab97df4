package logweir.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import net.razorvine.pickle.IObjectConstructor;
import net.razorvine.pickle.Unpickler;

/**
 * What the planner in Python told of one task (`pipeline/jvm/__init__.py`): a partition is a pickle
 * that calls `resumed` with a text for this reader, empty where Python reads, and what is Python's.
 */
final class Told {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final String MODULE = "logweir.pipeline.readers", FUNCTION = "resumed";

    static {
        IObjectConstructor arguments = given -> given;
        Unpickler.registerConstructor(MODULE, FUNCTION, arguments);
    }

    /** Blocks of one file. `isOpen`: it may end without its EOF marker; `header`: its bytes. */
    record Range(String path, String name, int number, boolean isLog, long start, long end, long size,
            boolean isOpen, int header, long headerSum) {}

    private final byte[] pickled;
    private final JsonNode told;
    private final Map<String, String> makers = new HashMap<>();

    private Told(byte[] pickled, JsonNode told) {
        this.pickled = pickled;
        this.told = told;
        for (JsonNode one : told.path("columns")) {
            makers.put(one.get(0).asText(), one.get(1).asText());
        }
    }

    /** What a partition says; null where it is of another kind, and Python alone knows it. */
    static Told of(byte[] partition) {
        Object found;
        try {
            found = new Unpickler().loads(partition);
        } catch (IOException | RuntimeException error) {
            return null; // it holds what only Python makes
        }
        if (!(found instanceof Object[] given) || given.length < 2 || !(given[0] instanceof byte[] own)) {
            return null;
        }
        try {
            return new Told(own, MAPPER.readTree((String) given[1]));
        } catch (JsonProcessingException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Whether the ranges are told: else Python reads all of it. */
    boolean isReadable() {
        return told.has("ranges");
    }

    List<Range> ranges() {
        List<Range> found = new ArrayList<>();
        for (JsonNode one : told.path("ranges")) {
            found.add(new Range(one.get(0).asText(), one.get(1).asText(), one.get(2).asInt(),
                    one.get(3).asBoolean(), one.get(4).asLong(), one.get(5).asLong(), one.get(6).asLong(),
                    one.get(7).asBoolean(), one.get(8).asInt(), one.get(9).asLong()));
        }
        return found;
    }

    long size() {
        return told.path("size").asLong();
    }

    boolean verifies() {
        return told.path("verify").asBoolean();
    }

    int batchRows() {
        return told.path("rows").asInt();
    }

    long batchBytes() {
        return told.path("bytes").asLong();
    }

    Chosen chosen(boolean isLog) {
        return new Chosen(told.path("chosen"), isLog);
    }

    /** How a column is made: by its name where it is one of a log's rows. */
    String maker(String column) {
        return isTyped() ? makers.getOrDefault(column, "") : column;
    }

    static String maker(int field, String kind) {
        return "field " + field + " " + kind;
    }

    boolean isTyped() {
        return told.has("columns");
    }

    /** The kind of each field of the space. */
    List<String> fields() {
        List<String> found = new ArrayList<>();
        told.path("fields").forEach(one -> found.add(one.asText()));
        return found;
    }

    /** The field of each part of the primary key; -1 for one that is none. */
    int[] key() {
        int[] found = new int[told.path("key").size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = told.path("key").get(i).asInt();
        }
        return found;
    }

    /** A partition for Python: what is left from byte `at` of that range on, of these columns. */
    byte[] rest(int range, long at, String[] columns) {
        Map<String, Object> left = Map.of("range", range, "at", at, "columns", columns);
        try {
            byte[] text = MAPPER.writeValueAsBytes(left);
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            DataOutputStream out = new DataOutputStream(bytes);
            out.write(new byte[] {(byte) 0x80, 3});
            out.write(("c" + MODULE + "\n" + FUNCTION + "\n").getBytes(StandardCharsets.US_ASCII));
            out.write('B');
            out.write(little(pickled.length));
            out.write(pickled);
            out.write('X');
            out.write(little(text.length));
            out.write(text);
            out.write(new byte[] {(byte) 0x86, 'R', '.'});
            return bytes.toByteArray();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static byte[] little(int number) {
        return ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt(number).array();
    }
}
