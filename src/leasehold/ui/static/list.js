import { $, KINDS, duration, h, left, listen, lockAddress, pill, process } from "./common.js";

const query = new URLSearchParams(location.search);
const wanted = {
  q: query.get("q") ?? "", kind: query.get("kind") ?? "", state: query.get("state") ?? "",
  sort: query.get("sort") ?? "name", page: Number(query.get("page")) || 1,
};
const rows = new Map();

function parameters() {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(wanted)) {
    if (value && !(name === "page" && value === 1) && !(name === "sort" && value === "name")) found.set(name, value);
  }
  return found;
}

function controls() {
  $("q").value = wanted.q;
  $("kind").value = wanted.kind;
  $("sort").value = wanted.sort;
  for (const button of document.querySelectorAll("[data-show]")) {
    button.setAttribute("aria-pressed", String(button.dataset.show === wanted.state));
  }
}

function change(changes) {
  Object.assign(wanted, { page: 1 }, changes);
  const text = parameters().toString();
  history.replaceState(null, "", text ? `?${text}` : location.pathname);
  controls();
  open();
}

function show(record) {
  const { totals } = record;
  for (const name of ["names", "held", "waiting", "danger"]) $(`n-${name}`).textContent = totals[name].toLocaleString("en");
  $("n-waiters").textContent = totals.waiters ? `${totals.waiters.toLocaleString("en")} in queues` : "";
  $("n-danger").classList.toggle("alarm", totals.danger > 0);
  const filtered = wanted.q || wanted.kind || wanted.state;
  const count = record.matching === 0 ? "" : `${record.first.toLocaleString("en")}–${(record.first + record.rows.length - 1).toLocaleString("en")} of ${record.matching.toLocaleString("en")}${filtered ? " that match" : ""}`;
  if ($("count").textContent !== count) $("count").textContent = count;
  $("empty").hidden = record.rows.length > 0;
  $("empty").textContent = filtered ? "No lock matches." : "No lock is held, and nobody waits.";
  $("pages").hidden = record.pages === 1;
  $("where").textContent = `Page ${record.page} of ${record.pages}`;
  $("before").disabled = record.page <= 1;
  $("next").disabled = record.page >= record.pages;
  wanted.page = record.page;
  draw(record.rows);
}

function draw(records) {
  const body = $("rows"), seen = new Set(records.map((record) => record.name));
  for (const [name, row] of rows) if (!seen.has(name)) { row.remove(); rows.delete(name); }
  records.forEach((record, at) => {
    let row = rows.get(record.name);
    if (!row) rows.set(record.name, (row = fresh(record)));
    fill(row, record);
    if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null);
  });
}

function fresh(record) {
  const name = h("a", { href: lockAddress(record.name) }, record.shown);
  const kind = record.kind === "lock" ? null : h("span", { class: "kind" }, KINDS[record.kind] ?? record.kind);
  return h("tr", {}, h("td", {}), h("td", { class: "name" }, name, kind), h("td", { class: "holder" }),
    h("td", { class: "num left" }), h("td", { class: "num waits" }), h("td", { class: "num token" }));
}

function fill(row, record) {
  const [state, , holder, lease, waits, token] = row.children;
  if (row.dataset.state !== record.state) { state.replaceChildren(pill(record.state)); row.dataset.state = record.state; }
  holder.replaceChildren(...holders(record));
  lease.replaceChildren(record.holder ? left(record.remaining, record.lease) : record.free_in > 0 ? `free in ${duration(record.free_in)}` : "–");
  waits.textContent = record.waiters || "–";
  waits.classList.toggle("none", !record.waiters);
  token.textContent = record.token ?? "–";
}

function holders(record) {
  const { holder, use } = record;
  if (!holder) return ["–"];
  const one = [holder.host, " ", process(holder)];
  if (use.limit) return [`${use.taken} of ${use.limit} permits`];
  if (use.writers) return ["Writer: ", ...one];
  if (use.readers) return [`${use.readers} reader${use.readers === 1 ? "" : "s"}`];
  return record.holders > 1 ? [`${record.holders} holders`] : one;
}

let typing = null;
$("tools").addEventListener("submit", (event) => event.preventDefault());
$("q").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => change({ q: $("q").value.trim() }), 150);
});
$("kind").addEventListener("change", () => change({ kind: $("kind").value }));
$("sort").addEventListener("change", () => change({ sort: $("sort").value }));
for (const button of document.querySelectorAll("[data-show]")) {
  button.addEventListener("click", () => change({ state: button.dataset.show }));
}
const turn = (by) => { change({ page: wanted.page + by }); scrollTo({ top: 0 }); };
$("before").addEventListener("click", () => turn(-1));
$("next").addEventListener("click", () => turn(1));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); $("q").focus(); }
  if (event.key === "Escape" && document.activeElement === $("q") && wanted.q) change({ q: "" });
});

controls();
const open = listen(() => `api/locks?${parameters()}`, show);
