import { $, KINDS, clock, duration, h, left, listen, pill, process } from "./common.js";
import { drawLine, drawTimes } from "./timeline.js";

const name = new URLSearchParams(location.search).get("name") ?? "";
const breaks = document.body.dataset.breaks === "yes";
const WORDS = {
  election: ["Leader", "Candidates"], semaphore: ["Holders", "Queue"], rw: ["Holders", "Queue"], barrier: ["Members", "Waiting"],
};
let past = { intervals: [], gaps: [] }, skew = 0, shown = "";

function show(record) {
  skew = record.status.now - Date.now() / 1000;
  if (record.history) past = record.history;
  const { lock } = record;
  const [holder, queue] = WORDS[lock.kind] ?? ["Holder", "Queue"];
  document.title = `${lock.shown} · leasehold`;
  $("name").textContent = lock.shown;
  $("kind").textContent = KINDS[lock.kind] ?? lock.kind;
  if (shown !== lock.state) { $("state").replaceChildren(pill(lock.state)); shown = lock.state; }
  $("h-holders").textContent = holder;
  $("h-queue").textContent = lock.queue.length ? `${queue} (${lock.queue.length})` : queue;
  $("facts").replaceChildren(...facts(lock));
  drawHolders(lock);
  drawQueue(lock);
  drawBreaks(record.breaks);
  redraw();
}

const fact = (term, value, mono = false) => h("div", {}, h("dt", {}, term), h("dd", { class: mono ? "mono" : null }, value));

function facts(lock) {
  const { use } = lock;
  const found = [fact("Last token", lock.token ?? "unknown", true)];
  if (use.limit) found.push(fact("Permits in use", `${use.taken} of ${use.limit}`));
  if (use.readers !== undefined) found.push(fact("Mode", use.writers ? "one writer" : use.readers ? `${use.readers} reader${use.readers === 1 ? "" : "s"}` : "nobody"));
  if (lock.lease) found.push(fact("Lease", duration(lock.lease)));
  if (lock.kind !== "semaphore" && lock.kind !== "rw") found.push(fact("Held by", lock.holders ? (lock.holders === 1 ? "one" : String(lock.holders)) : "nobody"));
  found.push(fact("Waiting", lock.waiters ? String(lock.waiters) : "nobody"));
  if (lock.free_in > 0) found.push(fact("Kept free for", duration(lock.free_in)));
  return found;
}

function drawHolders(lock) {
  if (!lock.entries.length) {
    const why = lock.free_in > 0 ? "A lease expired, and its lock delay runs: nobody may acquire it yet." : "Nobody holds it.";
    return $("holders").replaceChildren(h("p", { class: "card empty" }, why));
  }
  const cards = new Map([...$("holders").children].map((card) => [card.dataset.key, card]));
  const next = lock.entries.map((entry) => {
    const key = JSON.stringify([entry.token, entry.meta, entry.client]);
    let card = cards.get(key);
    if (!card) { card = person(entry, lock); card.dataset.key = key; }
    card.querySelector("[data-left]").replaceChildren(left(entry.remaining, entry.lease));
    return card;
  });
  if (next.some((card, at) => $("holders").children[at] !== card) || next.length !== $("holders").children.length) {
    $("holders").replaceChildren(...next);
  }
}

function person(entry, lock) {
  const seen = past.intervals.find((one) => one.token === entry.token && one.until === null);
  const rows = [["Token", entry.token ?? "none: a lock of another program", "mono"], ["Client", entry.client, "mono"]];
  if (seen) rows.push([seen.begun ? "Held since" : "Held before", clock(seen.since)]);
  if (entry.delay) rows.push(["Lock delay", duration(entry.delay)]);
  const terms = rows.flatMap(([term, value, kind]) => [h("dt", {}, term), h("dd", { class: kind }, value)]);
  const meta = (entry.meta ?? []).flatMap(([key, value]) => [h("dt", {}, key || (lock.kind === "election" ? "Value" : "Meta")), h("dd", { class: "mono" }, value)]);
  const button = breaks && entry.token !== null ? h("div", { class: "actions" }, h("button", { class: "danger", onclick: () => ask(entry, lock), "aria-label": `Break the hold of ${entry.host} pid ${entry.pid}` }, "Break …")) : null;
  return h("article", { class: "card person" },
    h("header", {}, h("h3", {}, entry.host, " ", process(entry)), entry.role ? h("span", { class: "kind" }, entry.role) : null),
    h("dl", {}, h("dt", {}, "Lease left"), h("dd", { "data-left": true }), ...terms, ...meta), button);
}

function drawQueue(lock) {
  if (!lock.queue.length) return $("queue").replaceChildren(h("p", { class: "card empty" }, "Nobody waits."));
  const places = lock.queue.slice(0, 200).map((entry, at) => h("li", {},
    h("span", { class: "place-no" }, `${at + 1}.`),
    h("div", {}, h("strong", {}, entry.host), " ", process(entry), entry.role ? h("span", { class: "kind" }, entry.role) : null,
      entry.meta ? h("div", { class: "metatext" }, entry.meta.map(([key, value]) => (key ? `${key}: ${value}` : value)).join(", ")) : null),
    h("small", {}, "entry kept for ", left(entry.remaining, null, false))));
  const more = lock.queue.length > 200 ? h("p", { class: "empty" }, `and ${lock.queue.length - 200} more`) : null;
  $("queue").replaceChildren(h("div", { class: "card" }, h("ol", { class: "queue" }, ...places), more ?? ""));
}

function drawBreaks(records) {
  $("breaks").hidden = !records.length;
  const row = (one) => h("tr", {}, h("td", {}, clock(one.time)), h("td", {}, one.result), h("td", { class: "token" }, one.token), h("td", {}, one.user), h("td", {}, one.reason));
  const heads = ["Time", "Result", "Token", "By", "Reason"].map((text) => h("th", { scope: "col" }, text));
  $("broken").replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...records.map(row))));
}

function redraw() {
  const now = Date.now() / 1000 + skew;
  drawLine($("line"), past, now, Number($("window").value));
  drawTimes($("times"), past, now);
}
$("window").addEventListener("change", redraw);
setInterval(redraw, 1000);

// --- breaking --------------------------------------------------------------------------------------------------------

let asked = null;

function ask(entry, lock) {
  asked = { entry, digits: entry.token.slice(-4) };
  $("d-what").textContent = `${lock.shown}\n${entry.host} pid ${entry.pid}, token ${entry.token}`;
  $("d-digits").textContent = asked.digits;
  $("form").reset();
  $("d-error").textContent = "";
  ready();
  $("dialog").showModal();
  $("d-reason").focus();
}

function ready() {
  $("d-break").disabled = !asked || !$("d-reason").value.trim() || $("d-confirm").value.trim() !== asked.digits;
}

const cookie = (wanted) => document.cookie.split("; ").find((one) => one.startsWith(`${wanted}=`))?.slice(wanted.length + 1) ?? "";

async function carryOut(event) {
  event.preventDefault();
  if ($("d-break").disabled) return;
  $("d-break").disabled = true;
  const body = JSON.stringify({ name, token: asked.entry.token, reason: $("d-reason").value });
  try {
    const headers = { "content-type": "application/json", "x-csrf-token": cookie("leasehold_csrf") };
    const answer = await fetch("api/break", { method: "POST", headers, body });
    if (answer.status === 401) return location.assign("login");
    const { result, error } = await answer.json();
    if (result === "broken") { $("dialog").close(); toast(`Broken. The holder has lost the lock, and notices at its next renewal.${error ? ` But ${error}.` : ""}`); }
    else $("d-error").textContent = {
      gone: "Not broken: that holder is gone. It released, lost or passed on the lock.",
      unknown: `The store did not answer, so nobody knows whether it was broken: ${error}`,
    }[result] ?? `Not broken: ${error}`;
  } catch {
    $("d-error").textContent = "The server of this page does not answer. Nobody knows whether it was broken.";
  }
  ready();
}

function toast(text) {
  $("said").textContent = text;
  $("said").hidden = false;
  setTimeout(() => { $("said").hidden = true; }, 6000);
}

$("form").addEventListener("submit", carryOut);
$("form").addEventListener("input", ready);
$("d-cancel").addEventListener("click", () => $("dialog").close());

listen(() => `api/lock?name=${encodeURIComponent(name)}`, show);
