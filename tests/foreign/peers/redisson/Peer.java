import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RBucket;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** A process that shares one lock of Redisson: KIND URL KEY LEASE_MS. Kinds and orders are those of lock_peer.py. */
public final class Peer {
    private static final int PERMITS = 3;
    private static RPermitExpirableSemaphore permits;
    private static String permit;
    private static long lease;
    private static RedissonClient client;
    private static RLock lock;
    private static String kind;
    private static String key;

    private Peer() {}

    public static void main(String[] args) throws Exception {
        kind = args[0];
        key = args[2];
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "error");
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(args[3]));
        config.setCodec(StringCodec.INSTANCE);
        config.useSingleServer().setAddress(args[1].split("\\?")[0]).setConnectionMinimumIdleSize(2)
                .setConnectionPoolSize(8);
        client = Redisson.create(config);
        lease = Long.parseLong(args[3]);
        switch (kind) {
            case "redisson-fenced" -> lock = client.getFencedLock(key);
            case "redisson-fair" -> lock = client.getFairLock(key);
            case "redisson-read" -> lock = client.getReadWriteLock(key).readLock();
            case "redisson-write" -> lock = client.getReadWriteLock(key).writeLock();
            case "redisson-permit" -> {
                permits = client.getPermitExpirableSemaphore(key);
                permits.trySetPermits(PERMITS);
            }
            default -> lock = client.getLock(key);
        }
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        say("ready");
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "count" -> {
                    for (int visit = 0; visit < Integer.parseInt(words[1]); visit++) {
                        long token = acquire();
                        visit(token);
                        release();
                    }
                    say("counted");
                }
                case "lock" -> say("held " + acquire());
                case "try" -> say(tries() ? "held " + token() : "none");
                case "unlock" -> {
                    release();
                    say("released");
                }
                default -> say("what? " + line);
            }
        }
        System.exit(0);
    }

    private static boolean tries() throws InterruptedException {
        if (permits == null) {
            return lock.tryLock();
        }
        permit = permits.tryAcquire(0, lease, TimeUnit.MILLISECONDS);
        return permit != null;
    }

    private static void release() {
        if (permits == null) {
            lock.unlock();
        } else {
            permits.release(permit);
        }
    }

    private static long acquire() throws InterruptedException {
        if (permits != null) {
            permit = permits.acquire(lease, TimeUnit.MILLISECONDS);
            return 0;
        }
        if (lock instanceof RFencedLock fenced) {
            return fenced.lockAndGetToken();
        }
        lock.lock();
        return 0;
    }

    private static long token() {
        return lock instanceof RFencedLock fenced ? fenced.getToken() : 0;
    }

    private static void visit(long token) throws InterruptedException {
        RBucket<String> room = client.getBucket(key + ":room", StringCodec.INSTANCE);
        RBucket<String> count = client.getBucket(key + ":count", StringCodec.INSTANCE);
        RAtomicLong inside = client.getAtomicLong(key + ":inside");
        if (kind.endsWith("-read") || permits != null) {
            if (inside.incrementAndGet() > (permits == null ? 1_000_000 : PERMITS) || room.isExists()) {
                say("overlap");
            }
            TimeUnit.MICROSECONDS.sleep(500);
            client.getAtomicLong(key + ":count").incrementAndGet();
            client.getList(key + ":log", StringCodec.INSTANCE).add(kind + " " + token);
            inside.decrementAndGet();
            return;
        }
        if (inside.get() != 0 || !room.setIfAbsent(kind)) {
            say("overlap");
        }
        String seen = count.get();
        TimeUnit.MICROSECONDS.sleep(500);
        count.set(String.valueOf((seen == null ? 0 : Long.parseLong(seen)) + 1));
        client.getList(key + ":log", StringCodec.INSTANCE).add(kind + " " + token);
        room.delete();
    }

    private static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }
}
