import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.DoubleStream;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * The worker of Redisson: it speaks with the bench as leasehold_lab.bench.processes.worker does, a line of JSON each, and runs the trial
 * "pairs", and one contender of the trial "handover". The client is made anew for each trial; the virtual machine stays, and has compiled what it runs often.
 */
public final class Worker {
    /** Seconds for which the first trial runs before, unmeasured, so that its code is compiled by then. */
    private static final double FIRST = 5.0;

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final BufferedReader IN = new BufferedReader(new InputStreamReader(System.in));
    private static final PrintStream OUT = System.out;

    private static boolean warm;

    private Worker() {}

    public static void main(String[] args) throws IOException {
        System.setOut(System.err); // what a library prints is no answer
        say(Map.of("step", "hello", "version", version(), "runs", "Java " + System.getProperty("java.version")));
        while (true) {
            JsonNode asked = hear();
            try {
                if (asked.get("trial").asText().equals("handover")) {
                    contend(asked);
                } else {
                    pairs(asked);
                }
            } catch (Exception error) {
                say(Map.of("step", "error", "error", error.toString()));
            }
        }
    }

    private static void pairs(JsonNode asked) throws Exception {
        if (!asked.get("trial").asText().equals("pairs")) {
            throw new IllegalArgumentException("this worker knows no trial " + asked.get("trial"));
        }
        int threads = asked.get("concurrency").asInt();
        int each = Math.max(1, asked.get("names").asInt() / threads);
        double seconds = asked.get("seconds").asDouble();
        RedissonClient client = client(asked);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<List<RLock>> turns = new ArrayList<>();
            for (int index = 0; index < threads; index++) {
                List<RLock> mine = new ArrayList<>();
                for (int at = 0; at < each; at++) {
                    mine.add(lock(client, asked, index * each + at));
                }
                turns.add(mine);
            }
            together(pool, turns, warm ? Math.max(seconds / 5, 0.5) : FIRST);
            warm = true;
            check(pool, lock(client, asked, 0));
            step("ready");
            OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
            long cpu = system.getProcessCpuTime();
            long start = System.nanoTime();
            double[] took = together(pool, turns, seconds);
            double passed = (System.nanoTime() - start) / 1e9;
            double used = (system.getProcessCpuTime() - cpu) / 1e9;
            step("done");
            Arrays.sort(took);
            say(Map.of(
                    "step", "outcome", "operations", took.length, "turns", took.length, "seconds", passed, "cpu", used,
                    "p50", took[took.length / 2], "p99", took[(int) (took.length * 0.99)]));
        } finally {
            pool.shutdown();
            client.shutdown();
        }
    }

    /** Take the one name again and again until the end of the run, and send what was counted. */
    private static void contend(JsonNode asked) throws Exception {
        long me = asked.get("me").asLong();
        double work = asked.get("work").asDouble();
        RedissonClient client = client(asked);
        try {
            Cells cells = new Cells(asked.get("cells").asText());
            repeat(List.of(lock(client, asked, (int) me)), warm ? 0.2 : FIRST);
            warm = true;
            RLock one = lock(client, asked, 0);
            step("ready");
            OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
            int turns = 0;
            int switches = 0;
            int overlaps = 0;
            long cpu = 0;
            boolean running = false;
            DoubleStream.Builder took = DoubleStream.builder();
            while (true) {
                one.lock();
                long now = System.nanoTime(); // the clock of the other contenders, on Linux
                long begin = cells.get(Cells.START);
                long end = cells.get(Cells.UNTIL);
                if (!running && now >= begin) {
                    cpu = system.getProcessCpuTime();
                    running = true;
                }
                if (cells.get(Cells.INSIDE) != 0) {
                    overlaps++;
                }
                cells.set(Cells.INSIDE, me);
                if (begin <= now && now < end) {
                    turns++;
                    if (cells.get(Cells.LAST) != me) {
                        switches++;
                        took.add((now - cells.get(Cells.FREED)) / 1e9);
                    }
                }
                cells.set(Cells.LAST, me);
                cells.set(Cells.CELLS + (int) me, 1);
                if (work > 0) {
                    LockSupport.parkNanos((long) (work * 1e9));
                }
                if (cells.get(Cells.INSIDE) != me) {
                    overlaps++;
                }
                cells.set(Cells.INSIDE, 0);
                cells.set(Cells.FREED, System.nanoTime());
                one.unlock();
                if (now >= end) {
                    break;
                }
            }
            double used = (system.getProcessCpuTime() - cpu) / 1e9;
            say(Map.of(
                    "step", "part", "turns", turns, "switches", switches, "overlaps", overlaps, "cpu", used,
                    "took", took.build().toArray()));
        } finally {
            client.shutdown();
        }
    }

    private static RedissonClient client(JsonNode asked) {
        Config config = new Config();
        config.useSingleServer().setAddress(asked.get("url").asText());
        return Redisson.create(config);
    }

    private static RLock lock(RedissonClient client, JsonNode asked, int number) {
        return client.getLock(String.format("%s:%07d", asked.get("namespace").asText(), number));
    }

    /** Let each thread take its turns round and round; return what each turn took, in seconds. */
    private static double[] together(ExecutorService pool, List<List<RLock>> turns, double seconds)
            throws InterruptedException, ExecutionException {
        List<Future<DoubleStream>> parts = new ArrayList<>();
        for (List<RLock> mine : turns) {
            parts.add(pool.submit(() -> repeat(mine, seconds)));
        }
        DoubleStream took = DoubleStream.empty();
        for (Future<DoubleStream> part : parts) {
            took = DoubleStream.concat(took, part.get());
        }
        return took.toArray();
    }

    private static DoubleStream repeat(List<RLock> turns, double seconds) {
        DoubleStream.Builder took = DoubleStream.builder();
        long before = System.nanoTime();
        long until = before + (long) (seconds * 1e9);
        while (true) {
            for (RLock one : turns) {
                one.lock();
                one.unlock();
                long now = System.nanoTime();
                took.add((now - before) / 1e9);
                before = now;
                if (now >= until) {
                    return took.build();
                }
            }
        }
    }

    /** See that a lock that is held is refused to another thread, and that after the release it is not. */
    private static void check(ExecutorService pool, RLock one) throws InterruptedException, ExecutionException {
        one.lock();
        if (pool.submit(() -> one.tryLock()).get()) {
            throw new IllegalStateException("two held one name at the same time");
        }
        one.unlock();
        if (!one.tryLock()) {
            throw new IllegalStateException("a name could not be acquired again after its release");
        }
        one.unlock();
    }

    private static String version() throws IOException {
        Properties found = new Properties();
        try (var file = Redisson.class.getResourceAsStream("/META-INF/maven/org.redisson/redisson/pom.properties")) {
            found.load(file);
        }
        return found.getProperty("version");
    }

    private static void step(String name) throws IOException {
        say(Map.of("step", name));
        hear();
    }

    private static JsonNode hear() throws IOException {
        String line = IN.readLine();
        if (line == null) { // nobody is there any more
            System.exit(0);
        }
        return JSON.readTree(line);
    }

    private static void say(Map<String, ?> facts) throws IOException {
        OUT.println(JSON.writeValueAsString(facts));
        OUT.flush();
    }
}
