import io.lettuce.core.RedisClient;
import io.lettuce.core.SetArgs;
import io.lettuce.core.api.sync.RedisCommands;
import java.util.concurrent.TimeUnit;

/** What the lock protects; see lock_peer.py. */
final class Room {
    private final RedisCommands<String, String> redis;
    private final String key;
    private final String kind;

    Room(String url, String key, String kind) {
        this.redis = RedisClient.create(url).connect().sync();
        this.key = key;
        this.kind = kind;
    }

    void visit() throws InterruptedException {
        if (!"OK".equals(redis.set(key + ":room", kind, SetArgs.Builder.nx()))) {
            say("overlap");
        }
        String seen = redis.get(key + ":count");
        TimeUnit.MICROSECONDS.sleep(500);
        redis.set(key + ":count", String.valueOf((seen == null ? 0 : Long.parseLong(seen)) + 1));
        redis.rpush(key + ":log", kind + " 0");
        redis.del(key + ":room");
    }

    static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }
}
