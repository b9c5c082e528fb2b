// What all pages share. Text of strangers is only ever set as text.

export const STATES = { held: "Held", waiting: "Waiting", danger: "In danger", delayed: "Kept free", free: "Free" };
export const KINDS = {
  lock: "Lock", rw: "Read-write lock", semaphore: "Semaphore", election: "Election", barrier: "Barrier",
  once: "Once", scheduled: "Scheduled", cached: "Cached value",
};

export const $ = (id) => document.getElementById(id);

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "onclick") element.addEventListener("click", value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const pill = (state) => h("span", { class: `pill ${state}` }, h("i", { class: `dot ${state}` }), STATES[state] ?? state);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "no end";
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

export const clock = (time) => new Date(time * 1000).toLocaleTimeString([], { hour12: false });
export const process = (owner) => (owner.pid ? h("small", {}, `pid ${owner.pid}`) : "");  // other libraries tell none
export const lockAddress = (name) => `lock?name=${encodeURIComponent(name)}`;

// --- time remaining: sent now and then, and counted down here --------------------------------------------------------

export function left(remaining, lease, bar = true) {
  const text = h("span", {});
  const rect = svg("rect", { height: 4, rx: 2, width: 0 });
  const meter = svg("svg", { class: "meter", viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" }, rect);
  const box = h("span", { class: "lease" }, text, bar && lease ? meter : null);
  box.lease = { ends: remaining === null ? null : performance.now() / 1000 + remaining, lease, text, rect, meter };
  tick(box);
  return box;
}

function tick(box) {
  const { ends, lease, text, rect, meter } = box.lease;
  const remaining = ends === null ? null : Math.max(0, ends - performance.now() / 1000);
  const said = duration(remaining);
  if (text.textContent !== said) text.textContent = said;
  if (!lease) return;
  const part = remaining === null ? 1 : Math.min(1, remaining / lease);
  rect.setAttribute("width", (100 * part).toFixed(1));
  meter.classList.toggle("low", part < 0.5);
}

setInterval(() => {
  if (document.body.classList.contains("stale")) return;
  for (const box of document.querySelectorAll(".lease")) tick(box);
}, 200);

// --- the live stream -------------------------------------------------------------------------------------------------

let stream = null, reopen = null, silent = null;

export function listen(address, show) {
  const open = () => {
    stream?.close();
    stream = new EventSource(address());
    stream.onmessage = (message) => {
      clearTimeout(silent);
      silent = null;
      const record = JSON.parse(message.data);
      status(record.status);
      show(record);
    };
    stream.onerror = () => {
      silent ??= setTimeout(lost, 1500);  // a stream that has reached its end comes back at once
      if (stream.readyState === EventSource.CLOSED) setTimeout(check, 1000, address);
    };
  };
  reopen = open;
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stream?.close();
    else open();
  });
  open();
  return open;
}

async function check(address) {
  if (document.hidden || stream.readyState !== EventSource.CLOSED) return;
  const ends = new AbortController();
  try {
    const answer = await fetch(address(), { signal: ends.signal });
    if (answer.status === 401) location.assign("login");
    ends.abort();
  } catch { /* the server is away */ }
  reopen();
}

function lost() {
  say("down", "Disconnected", "This page has lost its server. It goes on as soon as the server is back.");
}

function status(now) {
  if (!now.error) return say("live", "Live", "");
  const seen = now.at ? ` What is shown was seen at ${clock(now.at)}.` : "";
  say("down", "No answer", `The store does not answer, since ${clock(now.failing_since)}: ${now.error}.${seen}`);
}

function say(state, word, text) {
  const live = $("live"), banner = $("banner");
  if (live.dataset.state !== state || live.textContent !== word) {
    live.dataset.state = state;
    live.textContent = word;
  }
  document.body.classList.toggle("stale", state === "down");
  banner.hidden = !text;
  if (banner.textContent !== text) banner.textContent = text;
}
