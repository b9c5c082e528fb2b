// Who held a name when: a lane for each process, and the same as a table.

import { clock, duration, h, svg } from "./common.js";

const WIDE = 1000, LANES = 12;

export function drawLine(box, past, now, length) {
  const from = now - length;
  const seen = past.intervals.filter((one) => (one.until ?? now) >= from);
  if (!seen.length) return box.replaceChildren(h("p", { class: "empty" }, "Nobody was seen holding it in this time."));
  const lanes = new Map();
  for (const one of seen) lanes.set(one.process, [...(lanes.get(one.process) ?? []), one]);
  const latest = [...lanes].sort((a, b) => (b[1].at(-1).until ?? now) - (a[1].at(-1).until ?? now)).slice(0, LANES);
  const x = (time) => (WIDE * (Math.min(Math.max(time, from), now) - from)) / length;
  const gaps = past.gaps.filter(([, until]) => until > from);
  const parts = latest.flatMap(([process, holds]) => [h("span", { class: "who", title: process }, process), lane(process, holds, gaps, x, now)]);
  const rest = lanes.size - latest.length;
  box.replaceChildren(h("div", { class: "lanes" }, ...parts, h("span", {}), axis(now, length)),
    ...(rest > 0 ? [h("p", { class: "note" }, `and ${rest} more processes, in the table below`)] : []));
}

function lane(process, holds, gaps, x, now) {
  const bars = holds.map((one) => svg("rect", {
    class: `hold ${one.until === null ? "now" : "past"}`, x: x(one.since).toFixed(1), y: 3, height: 16, rx: 2,
    width: Math.max(2, x(one.until ?? now) - x(one.since)).toFixed(1),
  }, title(`token ${one.token}, ${clock(one.since)} to ${one.until === null ? "now" : clock(one.until)}`)));
  const unknown = gaps.map(([from, until]) => svg("rect", { class: "gap", x: x(from), y: 0, width: Math.max(1, x(until) - x(from)), height: 22 }));
  const label = `${process}: ${holds.length} hold${holds.length === 1 ? "" : "s"}${holds.at(-1).until === null ? ", holds it now" : ""}`;
  return svg("svg", { viewBox: `0 0 ${WIDE} 22`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...bars, ...unknown);
}

function axis(now, length) {
  const texts = [[0, "start", clock(now - length)], [50, "middle", clock(now - length / 2)], [100, "end", "now"]];
  return svg("svg", { class: "axis", "aria-hidden": "true" }, ...texts.map(([at, anchor, text]) => {
    const element = svg("text", { x: `${at}%`, y: 13, "text-anchor": anchor });
    element.textContent = text;
    return element;
  }));
}

export function drawTimes(box, past, now) {
  if (!box.parentElement.open) return;
  const heads = ["Process", "Token", "From", "To", "Held"].map((text) => h("th", { scope: "col" }, text));
  const rows = [...past.intervals].reverse().map((one) => h("tr", {},
    h("td", {}, one.process), h("td", { class: "token" }, one.token), h("td", {}, `${one.begun ? "" : "before "}${clock(one.since)}`),
    h("td", {}, one.until === null ? "now" : clock(one.until)), h("td", {}, duration((one.until ?? now) - one.since))));
  box.replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...rows)));
}

function title(text) {
  const element = svg("title");
  element.textContent = text;
  return element;
}
