import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.concurrent.locks.Lock;
import javax.sql.DataSource;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.RetryOneTime;
import org.springframework.data.redis.connection.RedisStandaloneConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.jdbc.lock.DefaultLockRepository;
import org.springframework.integration.jdbc.lock.JdbcLockRegistry;
import org.springframework.integration.redis.util.RedisLockRegistry;
import org.springframework.integration.zookeeper.lock.ZookeeperLockRegistry;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;

/** A process that shares one lock of Spring Integration: KIND URL KEY LEASE_MS ROOM. Its orders are those of lock_peer.py. */
public final class Peer {
    private static Lock lock;
    private static String kind;
    private static String key;

    private Peer() {}

    public static void main(String[] args) throws Exception {
        kind = args[0];
        key = args[2];
        Room room = new Room(args[4], key, kind);
        lock = lock(args[1], Duration.ofMillis(Long.parseLong(args[3])));
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        Room.say("ready");
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "count" -> {
                    for (int visit = 0; visit < Integer.parseInt(words[1]); visit++) {
                        lock.lock();
                        room.visit();
                        lock.unlock();
                    }
                    Room.say("counted");
                }
                case "lock" -> {
                    lock.lock();
                    Room.say("held 0");
                }
                case "try" -> Room.say(lock.tryLock() ? "held 0" : "none");
                case "unlock" -> {
                    try {
                        lock.unlock();
                        Room.say("released");
                    } catch (RuntimeException error) {
                        Room.say("refused " + error.getClass().getSimpleName());
                    }
                }
                default -> Room.say("what? " + line);
            }
        }
        System.exit(0);
    }

    private static Lock lock(String url, Duration ttl) throws Exception {
        if (kind.startsWith("spring-redis")) {
            String[] address = url.split("[/:?]+");
            LettuceConnectionFactory factory = new LettuceConnectionFactory(
                    new RedisStandaloneConfiguration(address[1], Integer.parseInt(address[2])));
            factory.afterPropertiesSet();
            factory.start();
            String registry = url.replaceAll(".*registry=", "").replaceAll("&.*", "");
            RedisLockRegistry locks = new RedisLockRegistry(factory, registry, ttl);
            if (kind.equals("spring-redis-pubsub")) {
                locks.setRedisLockType(RedisLockRegistry.RedisLockType.PUB_SUB_LOCK);
            }
            return locks.obtain(key);
        }
        if (kind.equals("spring-zookeeper")) {
            CuratorFramework curator = CuratorFrameworkFactory.newClient(
                    url.replaceAll("zookeeper://", "").replaceAll("/.*", ""), (int) ttl.toMillis(), 5000,
                    new RetryOneTime(100));
            curator.start();
            return new ZookeeperLockRegistry(curator).obtain(key);
        }
        DataSource source = Sources.of(url);
        DefaultLockRepository rows = new DefaultLockRepository(source);
        rows.setTransactionManager(new DataSourceTransactionManager(source));
        rows.afterPropertiesSet();
        rows.afterSingletonsInstantiated();
        rows.start();
        return new JdbcLockRegistry(rows, ttl).obtain(key);
    }
}
