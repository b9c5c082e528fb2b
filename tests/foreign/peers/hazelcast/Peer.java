import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.cp.lock.FencedLock;
import io.lettuce.core.RedisClient;
import io.lettuce.core.SetArgs;
import io.lettuce.core.api.sync.RedisCommands;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import org.springframework.integration.hazelcast.lock.HazelcastLockRegistry;

/**
 * A process that shares one FencedLock of Hazelcast: KIND URL KEY LEASE_MS ROOM. Orders are those of lock_peer.py.
 * Spring's registry has the same locks; Spring Integration has it up to 6.5.
 */
@SuppressWarnings("removal")
public final class Peer {
    private static String kind;
    private static String key;
    private static FencedLock lock;
    private static RedisCommands<String, String> room;

    private Peer() {}

    public static void main(String[] args) throws Exception {
        kind = args[0];
        key = args[2];
        String[] place = args[1].substring("hazelcast://".length()).split("[/?]");
        ClientConfig config = new ClientConfig();
        config.setClusterName(place[1]);
        config.setProperty("hazelcast.logging.type", "none");
        config.getNetworkConfig().setAddresses(Arrays.asList(place[0].split(",")));
        HazelcastInstance client = HazelcastClient.newHazelcastClient(config);
        String group = args[1].contains("group=") ? args[1].replaceAll(".*[?&]group=([^&]*).*", "@$1") : "";
        lock = kind.startsWith("spring")
                ? (FencedLock) new HazelcastLockRegistry(client).obtain(key + group)
                : client.getCPSubsystem().getLock(key + group);
        room = RedisClient.create(args[4]).connect().sync();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        say("ready");
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "count" -> {
                    for (int visit = 0; visit < Integer.parseInt(words[1]); visit++) {
                        visit(lock.lockAndGetFence());
                        lock.unlock();
                    }
                    say("counted");
                }
                case "lock" -> say("held " + lock.lockAndGetFence());
                case "try" -> say(tries());
                case "unlock" -> say(released());
                default -> say("what? " + line);
            }
        }
        System.exit(0);
    }

    private static String tries() {
        long fence = lock.tryLockAndGetFence();
        return fence == FencedLock.INVALID_FENCE ? "none" : "held " + fence;
    }

    private static String released() {
        try {
            lock.unlock();
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
