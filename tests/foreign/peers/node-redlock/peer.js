// A process that shares one lock of node-redlock: KIND URL KEY LEASE_MS [ROOM]. Its orders are those of lock_peer.py. A
// URL redlock://h1,h2,h3 names the servers of several clients.
const readline = require("node:readline");
const Redis = require("ioredis").default;
const { default: Redlock, ExecutionError } = require("redlock");

const [kind, url, key, lease, room] = process.argv.slice(2);
const hosts = url.split("?")[0].split("://")[1].split(",");
const members = hosts.map((host) => new Redis(`redis://${host}`));
const client = room ? new Redis(room) : members[0];
const waiting = new Redlock(members, { retryCount: -1, retryDelay: 10, retryJitter: 5 });
const once = new Redlock(members, { retryCount: 0 });
const say = (text) => process.stdout.write(`${text}\n`);

// With several servers it must not retry by itself: it would keep the keys of a minority between two tries, and count
// them as another's, until they expire.
async function acquire() {
  if (members.length === 1) return waiting.acquire([key], Number(lease));
  for (;;) {
    try {
      return await once.acquire([key], Number(lease));
    } catch (error) {
      if (!(error instanceof ExecutionError)) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 5 + 10 * Math.random()));
  }
}

async function visit() {
  if ((await client.set(`${key}:room`, kind, "NX")) === null) say("overlap");
  const seen = Number((await client.get(`${key}:count`)) ?? 0);
  await new Promise((resolve) => setTimeout(resolve, 1));
  await client.set(`${key}:count`, seen + 1);
  await client.rpush(`${key}:log`, `${kind} 0`);
  await client.del(`${key}:room`);
}

async function main() {
  let held = null;
  say("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [order, number] = line.split(" ");
    if (order === "count") {
      for (let done = 0; done < Number(number); done++) {
        const lock = await acquire();
        await visit();
        await lock.release();
      }
      say("counted");
    } else if (order === "unlock") {
      await held.release();
      say("released");
    } else {
      try {
        held = await (order === "lock" ? acquire() : once.acquire([key], Number(lease)));
        say("held 0");
      } catch (error) {
        if (!(error instanceof ExecutionError)) throw error;
        say("none");
      }
    }
  }
  process.exit(0);
}

for (const redlock of [waiting, once]) redlock.on("error", () => {});
main().catch((error) => {
  say(`error: ${error}`);
  process.exit(1);
});
