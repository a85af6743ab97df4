package logweir.spark;

import com.github.luben.zstd.Zstd;
import com.github.luben.zstd.ZstdDecompressCtx;
import com.github.luben.zstd.ZstdException;
import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.zip.CRC32C;

/**
 * The blocks of one range of a file, in order, as long as all is as it should be: `wal/block.py` and
 * `wal/walk.py` say how a block looks. At anything else it stops, and Python says what it is.
 */
final class Blocks implements Closeable {
    private static final int HEADER = 19, WINDOW = 1 << 20, FRAME = 0xFD2FB528, EOF = 0xD510ADED;
    private static final long RAW = 256L << 20; // limits.BLOCK_RAW_BYTES
    private static final byte[] ONES = {-1, -1, -1, -1}; // behind them the register of CRC-32C is 0

    private final Told.Range range;
    private final boolean verifies;
    private final ZstdDecompressCtx unpacker = new ZstdDecompressCtx();
    private final CRC32C crc = new CRC32C();
    private FileChannel file;
    private byte[] window = new byte[WINDOW];
    private long begins; // of the window in the file
    private int filled;
    /** Everything before it was taken. */
    long at;

    Blocks(Told.Range range, boolean verifies) throws IOException {
        this.range = range;
        this.verifies = verifies;
        at = range.start();
        file = FileChannel.open(Path.of(range.path()), StandardOpenOption.READ);
    }

    /** Whether the file still has what it had when the scan was planned. */
    boolean isSame() throws IOException {
        if (file.size() < range.size()) {
            return false;
        }
        ByteBuffer header = ByteBuffer.allocate(range.header());
        while (header.hasRemaining() && file.read(header, header.position()) > 0) {}
        return !header.hasRemaining() && sum(header.array(), 0, range.header()) == range.headerSum();
    }

    private long sum(byte[] data, int start, int size) {
        crc.reset();
        crc.update(ONES, 0, 4);
        crc.update(data, start, size);
        return ~crc.getValue() & 0xFFFFFFFFL;
    }

    /** Whether the range ends here, in order. */
    boolean isEnd() throws IOException {
        if (range.end() < range.size()) {
            return at >= range.end();
        }
        if (at == range.size()) {
            return range.isOpen();
        }
        return range.size() - at == 4 && has(4) && (int) Pack.load(window, (int) (at - begins), 4) == EOF;
    }

    /** Have the rows of the next block taken. False where there is none in order. */
    boolean next(Rows rows) throws IOException {
        if (at >= range.end() || !has(HEADER)) {
            return false;
        }
        int head = (int) (at - begins);
        boolean isPacked = (window[head + 3] & 0xFF) == 0xBA;
        long magic = Pack.load(window, head, 4);
        if (magic != 0xD5BA0BABL && magic != 0xD5BA0BBAL) {
            return false;
        }
        int start = head + 4;
        long length = 0;
        long sum = 0;
        for (int i = 0; i < 3; i++) {
            int stop = Pack.uintEnd(window, start, head + HEADER);
            if (stop < 0) {
                return false;
            }
            long value = Pack.uint(window, start, stop);
            if (value >>> 32 != 0) {
                return false;
            }
            length = i == 0 ? value : length;
            sum = value;
            start = stop;
        }
        int padding = head + HEADER - start;
        if (padding != 0 && (window[start] & 0xFF) != 0xA0 + padding - 1) {
            return false;
        }
        if (length == 0 || length > RAW || !has(HEADER + (int) length)) {
            return false;
        }
        head = (int) (at - begins);
        start = head + HEADER;
        int size = (int) length;
        if (verifies && sum(window, start, size) != sum) {
            return false;
        }
        int end = isPacked ? unpack(rows, start, size) : plain(rows, start, size);
        if (end < 0 || !rows.take(at, end)) {
            return false;
        }
        at += HEADER + length;
        return true;
    }

    private int plain(Rows rows, int start, int size) {
        rows.reserve(size);
        System.arraycopy(window, start, rows.data, rows.size, size);
        return rows.size + size;
    }

    /** Unpack one whole frame behind the rows that are there. Where it ends, -1 if it is none. */
    private int unpack(Rows rows, int start, int size) {
        if (size < 4 || Integer.reverseBytes((int) Pack.load(window, start, 4)) != FRAME) {
            return -1;
        }
        if (Zstd.findFrameCompressedSize(window, start, size) != size) {
            return -1;
        }
        long room = Zstd.getFrameContentSize(window, start, size);
        boolean isSaid = room > 0;
        if (!isSaid) {
            room = Math.max(8L * size, rows.data.length - rows.size);
        }
        while (room <= RAW) {
            rows.reserve((int) room);
            try {
                return rows.size + unpacker.decompressByteArray(rows.data, rows.size,
                        rows.data.length - rows.size, window, start, size);
            } catch (ZstdException error) {
                if (isSaid || error.getErrorCode() != Zstd.errDstSizeTooSmall()) {
                    return -1;
                }
                room *= 2;
            }
        }
        return -1;
    }

    /** Whether so many bytes stand in the window from `at` on, which reads them. */
    private boolean has(int count) throws IOException {
        if (at + count <= begins + filled) {
            return true;
        }
        if (at + count > range.size()) {
            return false;
        }
        if (count > window.length) {
            window = new byte[count + (count >> 2)];
        }
        begins = at;
        filled = 0;
        ByteBuffer to = ByteBuffer.wrap(window, 0, (int) Math.min(window.length, range.size() - at));
        while (to.hasRemaining() && file.read(to, begins + filled) > 0) {
            filled = to.position();
        }
        return filled >= count;
    }

    @Override
    public void close() throws IOException {
        unpacker.close();
        file.close();
    }
}
