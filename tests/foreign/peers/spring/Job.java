import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import javax.sql.DataSource;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.springframework.jdbc.core.JdbcTemplate;

/**
 * A process that shares the runs of one job of ShedLock: KIND URL NAME AT_MOST_MS ROOM. Its orders are those of
 * job_peer.py. Kind shedlock has the server's clock, shedlock-clock that of its host.
 */
public final class Job {
    private Job() {}

    public static void main(String[] args) throws Exception {
        DataSource source = Sources.of(args[1]);
        JdbcTemplateLockProvider.Configuration.Builder made =
                JdbcTemplateLockProvider.Configuration.builder().withJdbcTemplate(new JdbcTemplate(source));
        JdbcTemplateLockProvider provider =
                new JdbcTemplateLockProvider(args[0].equals("shedlock") ? made.usingDbTime().build() : made.build());
        Duration most = Duration.ofMillis(Long.parseLong(args[3]));
        Room room = new Room(args[4], args[2], args[0]);
        SimpleLock held = null;
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        Room.say("ready");
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "count" -> {
                    for (int visit = 0; visit < Integer.parseInt(words[1]);) {
                        Optional<SimpleLock> got = provider.lock(run(args[2], most));
                        if (got.isPresent()) {
                            room.visit();
                            got.get().unlock();
                            visit++;
                        } else {
                            Thread.sleep(5);
                        }
                    }
                    Room.say("counted");
                }
                case "begin" -> {
                    Optional<SimpleLock> got = provider.lock(run(args[2], most));
                    held = got.orElse(held);
                    Room.say(got.isPresent() ? "held 0" : "none");
                }
                case "end" -> {
                    held.unlock();
                    held = null;
                    Room.say("released");
                }
                default -> Room.say("what? " + line);
            }
        }
        System.exit(0);
    }

    private static LockConfiguration run(String name, Duration most) {
        return new LockConfiguration(Instant.now(), name, most, Duration.ZERO);
    }
}
