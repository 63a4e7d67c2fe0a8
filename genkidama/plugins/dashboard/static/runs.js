// Several runs: a table of them, with a link to each, and their curves over one another.

import * as curve from "./curve.js";
import { element, find, fit, mark, reveal, say } from "./dom.js";
import { byName } from "./scale.js";
import { Table } from "./table.js";
import * as words from "./words.js";

const HUES = 7;
const DASHES = 4;

let table = null;
let hidden = null;
let latest = null;

const order = (a, b) => byName(a.environment, b.environment) || byName(a.name, b.name);

// The settings in which runs of one environment differ, as "gamma 0.9 · learning_rate 0.001".
function differences(runs) {
  const differing = new Map();
  for (const run of runs) {
    const others = runs.filter((other) => other.environment === run.environment);
    const keys = Object.keys({ ...Object.assign({}, ...others.map((one) => one.settings ?? {})) });
    differing.set(
      run.name,
      keys
        .filter((key) => new Set(others.map((one) => JSON.stringify(one.settings?.[key]))).size > 1)
        .map((key) => `${key.split(".").at(-1)} ${words.setting(run.settings?.[key] ?? "default")}`)
        .join(" · "),
    );
  }
  return differing;
}

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
  { name: "evaluated", hint: "mean of the last evaluation", value: plain("evaluation"), text: words.score },
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
  { name: "settings", value: plain("differs"), hint: "in which these runs differ", ...WORDY, wide: "text" },
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
  find("runs-table").append(table.node);
}

function choose(name) {
  if (hidden.has(name)) hidden.delete(name);
  else hidden.add(name);
  show(latest);
}

// Shows the runs of one environment: returns of two have no axis in common.
function chooseEnvironment(name) {
  hidden = new Set(latest.runs.filter((run) => run.environment !== name).map((run) => run.name));
  show(latest);
}

// Buttons of these names. Those of runs are the key to the curves: a style each.
function buttons(id, names, choose, pressed, styles = null) {
  const root = find(id);
  reveal(root, names.length > 0);
  fit(root, names.length, () =>
    element(
      "button",
      { type: "button", class: "choice", onclick: ({ currentTarget }) => choose(currentTarget.dataset.name) },
      styles && element("i"),
      element("span"),
    ),
  );
  names.forEach((name, index) => {
    const button = root.children[index];
    button.dataset.name = name;
    mark(button, "aria-pressed", String(pressed(name)));
    if (styles) mark(button.firstChild, "class", `key ${styles[index]}`);
    say(button.lastChild, name);
  });
}

// The environment of the run that began last.
const newest = (runs) =>
  runs.reduce((a, b) => ((b.started ?? 0) > (a.started ?? 0) ? b : a), runs[0])?.environment;

export function show(document) {
  latest = document;
  const differing = differences(document.runs);
  hidden ??= new Set(
    document.runs.filter((run) => run.environment !== newest(document.runs)).map((run) => run.name),
  );
  const runs = [...document.runs].sort(order).map((run, index) => ({
    ...run,
    differs: differing.get(run.name),
    style: `s${index % HUES} dash${Math.floor(index / HUES) % DASHES}`,
  }));
  window.document.title = `${words.many(runs.length, "run")} · Genkidama`;
  find("title").textContent = words.many(runs.length, "run");
  find("kind").textContent = "over one another";
  reveal(find("runs"), true);
  const seen = runs.filter((run) => !hidden.has(run.name));
  const environments = [...new Set(runs.map((run) => run.environment))];
  buttons(
    "environments",
    environments.length > 1 ? environments : [],
    chooseEnvironment,
    (name) => seen.length > 0 && seen.every((run) => run.environment === name),
  );
  buttons(
    "curves",
    runs.map((run) => run.name),
    choose,
    (name) => !hidden.has(name),
    runs.map((run) => run.style),
  );
  table.show(runs);
  curve.show("Mean return", seen, null);
}
