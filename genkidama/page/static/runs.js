// Several runs: a table of them, with a link to each, and their curves over one another.

import * as curve from "./curve.js";
import { element, find, mark, reveal } from "./dom.js";
import { Table } from "./table.js";
import * as words from "./words.js";

const HUES = 7;
const DASHES = 4;

let table = null;
let hidden = new Set();
let latest = null;

const collator = new Intl.Collator("en", { numeric: true });
const order = (a, b) => collator.compare(a.name, b.name);

const COLUMNS = [
  { name: "name", label: "run", left: true, wide: "name", value: (run) => run.name, text: (run) => run.name, kind: (run) => run.style },
  { name: "return", label: "return", hint: "mean return at the end, or now", value: (run) => run.mean_return, text: (run) => words.score(run.mean_return) },
  { name: "time", label: "time", value: (run) => run.elapsed, text: (run) => words.duration(run.elapsed) },
  { name: "steps", label: "steps", value: (run) => run.steps, text: (run) => words.brief(run.steps) },
  { name: "state", label: "state", left: true, from: "m", value: (run) => run.state, text: (run) => run.state, title: (run) => run.reason },
  { name: "environment", label: "environment", left: true, wide: "text", from: "m", value: (run) => run.environment, text: (run) => run.environment },
  { name: "algorithm", label: "algorithm", left: true, from: "l", value: (run) => run.algorithm, text: (run) => run.algorithm },
  { name: "backend", label: "backend", left: true, from: "l", value: (run) => run.backend, text: (run) => run.backend },
  { name: "rule", label: "rule", left: true, from: "l", value: (run) => run.rule, text: (run) => run.rule },
  { name: "alpha", label: "α", from: "l", value: (run) => run.alpha, text: (run) => words.figure(run.alpha) },
  { name: "beta", label: "β", from: "l", value: (run) => run.beta, text: (run) => words.figure(run.beta) },
  { name: "seed", label: "seed", from: "xl", value: (run) => run.seed ?? null, text: (run) => words.figure(run.seed) },
];

export function begin() {
  table = new Table({ columns: COLUMNS, key: (run) => run.name, order, label: "runs-title", open: (run) => { location.href = new URL(run.url, location.href).href; } });
  find("curve").before(element("div", { id: "curves", class: "choices", role: "group", "aria-label": "Curves that are shown", hidden: true }));
  find("runs-table").append(table.node);
}

function choose(name) {
  if (hidden.has(name)) hidden.delete(name);
  else hidden.add(name);
  show(latest);
}

// A button a run: it is the key to the curves, and puts its own away.
function drawChoices(runs) {
  const root = find("curves");
  reveal(root, true);
  while (root.children.length > runs.length) root.lastElementChild.remove();
  while (root.children.length < runs.length) {
    const button = element("button", { type: "button", class: "choice" }, element("i"), element("span"));
    button.addEventListener("click", () => choose(button.dataset.name));
    root.append(button);
  }
  runs.forEach((run, index) => {
    const button = root.children[index];
    button.dataset.name = run.name;
    mark(button, "aria-pressed", String(!hidden.has(run.name)));
    mark(button.firstChild, "class", `key ${run.style}`);
    if (button.lastChild.textContent !== run.name) button.lastChild.textContent = run.name;
  });
}

export function show(document) {
  latest = document;
  const runs = [...document.runs].sort(order)
    .map((run, index) => ({ ...run, style: `s${index % HUES} dash${Math.floor(index / HUES) % DASHES}` }));
  window.document.body.dataset.view = "runs";
  window.document.title = `${words.many(runs.length, "run")} · Genkidama`;
  find("title").textContent = words.many(runs.length, "run");
  find("kind").textContent = "over one another";
  reveal(find("runs"), true);
  drawChoices(runs);
  table.show(runs);
  curve.show("Mean return", runs.filter((run) => !hidden.has(run.name)), null, document.plotly);
}
