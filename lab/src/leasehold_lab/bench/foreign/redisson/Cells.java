import java.io.IOException;
import java.io.RandomAccessFile;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;

/** The cells that all contenders share, as in leasehold_lab.bench.trials.handover. */
final class Cells {
    static final int INSIDE = 0;
    static final int LAST = 1;
    static final int FREED = 3;
    static final int START = 4;
    static final int UNTIL = 5;
    static final int CELLS = 6;

    private static final VarHandle CELL =
            MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.nativeOrder());

    private final MappedByteBuffer memory;

    Cells(String path) throws IOException {
        try (RandomAccessFile file = new RandomAccessFile(path, "rw")) {
            memory = file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, file.length());
        }
    }

    long get(int at) {
        return (long) CELL.getVolatile(memory, 8 * at);
    }

    void set(int at, long value) {
        CELL.setVolatile(memory, 8 * at, value);
    }
}
