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
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;

/** A process that shares one lock of Redisson: KIND URL KEY LEASE_MS [ROOM_URL]. Kinds and orders are those of lock_peer.py. */
public final class Peer {
    private static final int PERMITS = 3;
    private static RPermitExpirableSemaphore permits;
    private static String permit;
    private static long lease;
    private static RedissonClient client;
    private static RedissonClient rooms;
    private static RLock lock;
    private static String kind;
    private static String key;

    private Peer() {}

    public static void main(String[] args) throws Exception {
        kind = args[0];
        key = args[2];
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "error");
        lease = Long.parseLong(args[3]);
        client = connect(args[1].split("\\?")[0]);
        rooms = args.length > 4 ? connect(args[4]) : client;
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

    private static RedissonClient connect(String url) {
        Config config = new Config();
        config.setLockWatchdogTimeout(lease);
        config.setCodec(StringCodec.INSTANCE);
        if (url.startsWith("redis+cluster://")) {
            ClusterServersConfig cluster = config.useClusterServers();
            for (String node : url.substring("redis+cluster://".length()).split(",")) {
                cluster.addNodeAddress("redis://" + node);
            }
            cluster.setMasterConnectionMinimumIdleSize(2).setMasterConnectionPoolSize(8);
        } else {
            config.useSingleServer().setAddress(url).setConnectionMinimumIdleSize(2).setConnectionPoolSize(8);
        }
        return Redisson.create(config);
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
        RBucket<String> room = rooms.getBucket(key + ":room", StringCodec.INSTANCE);
        RBucket<String> count = rooms.getBucket(key + ":count", StringCodec.INSTANCE);
        RAtomicLong inside = rooms.getAtomicLong(key + ":inside");
        if (kind.endsWith("-read") || permits != null) {
            if (inside.incrementAndGet() > (permits == null ? 1_000_000 : PERMITS) || room.isExists()) {
                say("overlap");
            }
            TimeUnit.MICROSECONDS.sleep(500);
            rooms.getAtomicLong(key + ":count").incrementAndGet();
            rooms.getList(key + ":log", StringCodec.INSTANCE).add(kind + " " + token);
            inside.decrementAndGet();
            return;
        }
        if (inside.get() != 0 || !room.setIfAbsent(kind)) {
            say("overlap");
        }
        String seen = count.get();
        TimeUnit.MICROSECONDS.sleep(500);
        count.set(String.valueOf((seen == null ? 0 : Long.parseLong(seen)) + 1));
        rooms.getList(key + ":log", StringCodec.INSTANCE).add(kind + " " + token);
        room.delete();
    }

    private static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }
}
