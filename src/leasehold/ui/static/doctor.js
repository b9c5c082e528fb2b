import { $, h, listen } from "./common.js";

async function ask() {
  try {
    const answer = await fetch("api/doctor");
    if (answer.status === 401) return location.assign("login");
    const { error, findings } = await answer.json();
    $("summary").textContent = error ? `The store does not answer: ${error}` : count(findings);
    $("findings").replaceChildren(...findings.map(finding));
  } catch {
    $("summary").textContent = "The server of this page does not answer.";
  }
}

function count(findings) {
  const words = ["error", "warning", "note", "ok"];
  return words.map((word) => [findings.filter((one) => one.severity === word).length, word]).filter(([number]) => number)
    .map(([number, word]) => `${number} ${word}`).join(", ") || "No findings.";
}

const term = (word, text) => (text ? h("p", {}, h("span", { class: "term" }, word), text) : null);

function finding(one) {
  return h("li", { class: "card" }, h("h2", {}, h("span", { class: `severity ${one.severity}` }, one.severity), one.subject),
    h("p", {}, one.found), term("Means:", one.meaning), term("Do:", one.remedy));
}

ask();
setInterval(() => { if (!document.hidden) ask(); }, 30000);
listen(() => "api/locks?page=1", () => {});
