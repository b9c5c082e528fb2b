import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.cp.lock.FencedLock;
import com.hazelcast.map.IMap;
import io.lettuce.core.RedisClient;
import io.lettuce.core.SetArgs;
import io.lettuce.core.api.sync.RedisCommands;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;

/**
 * A process that shares one lock of Hazelcast: KIND URL KEY LEASE_MS ROOM. Orders are those of lock_peer.py. The kind
 * hazelcast is a FencedLock, hazelcast-map a key of the IMap that the URL names.
 */
public final class Peer {
    private static String kind;
    private static String key;
    private static long lease;
    private static FencedLock lock;
    private static IMap<String, String> map;
    private static RedisCommands<String, String> room;

    private Peer() {}

    public static void main(String[] args) throws Exception {
        kind = args[0];
        key = args[2];
        lease = Long.parseLong(args[3]);
        String[] place = args[1].substring("hazelcast://".length()).split("[/?]");
        ClientConfig config = new ClientConfig();
        config.setClusterName(place[1]);
        config.setProperty("hazelcast.logging.type", "none");
        config.getNetworkConfig().setAddresses(Arrays.asList(place[0].split(",")));
        HazelcastInstance client = HazelcastClient.newHazelcastClient(config);
        if (kind.equals("hazelcast-map")) {
            map = client.getMap(args[1].replaceAll(".*[?&]map=([^&]*).*", "$1"));
        } else {
            String group = args[1].contains("group=") ? args[1].replaceAll(".*[?&]group=([^&]*).*", "@$1") : "";
            lock = client.getCPSubsystem().getLock(key + group);
        }
        room = RedisClient.create(args[4]).connect().sync();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        say("ready");
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "count" -> {
                    for (int visit = 0; visit < Integer.parseInt(words[1]); visit++) {
                        visit(acquire());
                        release();
                    }
                    say("counted");
                }
                case "lock" -> say("held " + acquire());
                case "try" -> say(tries());
                case "unlock" -> say(released());
                default -> say("what? " + line);
            }
        }
        System.exit(0);
    }

    private static long acquire() {
        if (map != null) {
            map.lock(key, lease, TimeUnit.MILLISECONDS);
            return 0;
        }
        return lock.lockAndGetFence();
    }

    private static String tries() throws InterruptedException {
        if (map != null) {
            return map.tryLock(key, 0, TimeUnit.MILLISECONDS, lease, TimeUnit.MILLISECONDS) ? "held 0" : "none";
        }
        long fence = lock.tryLockAndGetFence();
        return fence == FencedLock.INVALID_FENCE ? "none" : "held " + fence;
    }

    private static void release() {
        if (map != null) {
            map.unlock(key);
        } else {
            lock.unlock();
        }
    }

    private static String released() {
        try {
            release();
            return "released";
        } catch (RuntimeException error) {
            return error.getClass().getSimpleName();
        }
    }

    private static void visit(long token) throws InterruptedException {
        if (!"OK".equals(room.set(key + ":room", kind, SetArgs.Builder.nx()))) {
            say("overlap");
        }
        String seen = room.get(key + ":count");
        TimeUnit.MICROSECONDS.sleep(500);
        room.set(key + ":count", String.valueOf((seen == null ? 0 : Long.parseLong(seen)) + 1));
        room.rpush(key + ":log", kind + " " + token);
        room.del(key + ":room");
    }

    private static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }
}
