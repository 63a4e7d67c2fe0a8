// Several runs: a table of them, with a link to each, and their curves over one another.

import * as curve from "./curve.js";
import { element, find, fit, mark, reveal, say } from "./dom.js";
import { byName } from "./scale.js";
import { Table } from "./table.js";
import * as words from "./words.js";

const HUES = 7;
const DASHES = 4;

let table = null;
let hidden = new Set();
let latest = null;

const order = (a, b) => byName(a.name, b.name);

const plain = (name) => (run) => run[name];
const WORDY = { left: true, from: "l" };

const COLUMNS = [
  { name: "name", label: "run", left: true, wide: "name" },
  {
    name: "return",
    hint: "mean return at the end, or now",
    value: plain("mean_return"),
    text: words.score,
  },
  { name: "time", value: plain("elapsed"), text: words.duration },
  { name: "steps", text: words.brief },
  {
    name: "state",
    title: plain("reason"),
    left: true,
    from: "m",
  },
  {
    name: "environment",
    left: true,
    wide: "text",
    from: "m",
  },
  { name: "algorithm", ...WORDY },
  { name: "backend", ...WORDY },
  { name: "rule", ...WORDY },
  { name: "alpha", label: "α", text: words.figure, from: "l" },
  { name: "beta", label: "β", text: words.figure, from: "l" },
  { name: "seed", text: words.figure, from: "xl" },
];

export function begin() {
  table = new Table({
    columns: COLUMNS,
    key: (run) => run.name,
    order,
    label: "runs-title",
    open: (run) => {
      location.href = new URL(run.url, location.href).href;
    },
  });
  find("curve").before(
    element("div", {
      id: "curves",
      class: "choices",
      role: "group",
      "aria-label": "Curves that are shown",
      hidden: true,
    }),
  );
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
  fit(root, runs.length, () =>
    element(
      "button",
      { type: "button", class: "choice", onclick: ({ currentTarget }) => choose(currentTarget.dataset.name) },
      element("i"),
      element("span"),
    ),
  );
  runs.forEach((run, index) => {
    const button = root.children[index];
    button.dataset.name = run.name;
    mark(button, "aria-pressed", String(!hidden.has(run.name)));
    mark(button.firstChild, "class", `key ${run.style}`);
    say(button.lastChild, run.name);
  });
}

export function show(document) {
  latest = document;
  const runs = [...document.runs].sort(order).map((run, index) => ({
    ...run,
    style: `s${index % HUES} dash${Math.floor(index / HUES) % DASHES}`,
  }));
  window.document.body.dataset.view = "runs";
  window.document.title = `${words.many(runs.length, "run")} · Genkidama`;
  find("title").textContent = words.many(runs.length, "run");
  find("kind").textContent = "over one another";
  reveal(find("runs"), true);
  drawChoices(runs);
  table.show(runs);
  curve.show(
    "Mean return",
    runs.filter((run) => !hidden.has(run.name)),
    null,
  );
}
