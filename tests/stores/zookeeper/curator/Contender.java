// Takes and releases locks of Apache Curator, one after the other, and proves each time that it is alone.
//
// Arguments: connect string, path, kind (mutex, rw, semaphore:N), file, acquisitions, session timeout in milliseconds.
// The proof is a lock of the operating system on the file, which ends with the process: shared for a reader, and not
// taken at all for a permit. Whoever holds alone adds one to the number in the file. Each acquisition is a line on
// standard output: what it was (w, r, p), when it began and when it ended in nanoseconds of the monotonic clock.

import java.io.RandomAccessFile;
import java.nio.channels.FileLock;
import java.util.Random;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.RetryForever;

public class Contender {
    static final Random random = new Random();
    static RandomAccessFile file;

    public static void main(String[] arguments) throws Exception {
        CuratorFramework curator = CuratorFrameworkFactory.newClient(
                arguments[0], Integer.parseInt(arguments[5]), 5000, new RetryForever(50));
        curator.start();
        String path = arguments[1], kind = arguments[2];
        file = new RandomAccessFile(arguments[3], "rw");
        int count = Integer.parseInt(arguments[4]);
        InterProcessMutex mutex = kind.equals("mutex") ? new InterProcessMutex(curator, path) : null;
        InterProcessReadWriteLock both = kind.equals("rw") ? new InterProcessReadWriteLock(curator, path) : null;
        InterProcessSemaphoreV2 permits = kind.startsWith("semaphore:")
                ? new InterProcessSemaphoreV2(curator, path, Integer.parseInt(kind.substring(10))) : null;
        for (int done = 0; done < count; done++) {
            if (permits != null) {
                Lease lease = permits.acquire();
                long start = System.nanoTime();
                Thread.sleep(random.nextInt(4));
                say("p", start);
                permits.returnLease(lease);
            } else {
                boolean reads = both != null && random.nextInt(3) > 0;
                InterProcessLock lock = both == null ? mutex : reads ? both.readLock() : both.writeLock();
                lock.acquire();
                enter(reads);
                lock.release();
            }
        }
        curator.close();
    }

    static void enter(boolean reads) throws Exception {
        long start = System.nanoTime();
        FileLock proof = file.getChannel().tryLock(0, Long.MAX_VALUE, reads);
        if (proof == null) {
            System.out.println("OVERLAP");
            System.exit(3);
        }
        if (!reads) {
            byte[] text = new byte[(int) file.length()];
            file.seek(0);
            file.readFully(text);
            long number = text.length == 0 ? 0 : Long.parseLong(new String(text).trim());
            Thread.sleep(random.nextInt(2));
            file.seek(0);
            file.write(String.format("%020d", number + 1).getBytes());
        } else {
            Thread.sleep(random.nextInt(2));
        }
        say(reads ? "r" : "w", start);
        proof.release();
    }

    static void say(String what, long start) {
        System.out.println(what + " " + start + " " + System.nanoTime());
        System.out.flush();
    }
}
