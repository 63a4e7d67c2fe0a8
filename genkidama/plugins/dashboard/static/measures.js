// What backends and learners measure: diagnostics as small curves, newest figures, GA3C's queues.

import { AXES, spark } from "./chart.js";
import { drawn, element, facts, find, fit, mark, reveal, say, small } from "./dom.js";
import * as words from "./words.js";

// As docs/notes/diagnostics.md has them; what learners of one's own measure follows, and counters are last.
const ORDER = [
  "loss",
  "policy_loss",
  "value_loss",
  "entropy",
  "approximate_kl",
  "kl",
  "clip_fraction",
  "explained_variance",
  "td_error",
  "q_mean",
  "gradient_norm",
  "learning_rate",
  "epsilon",
  "episode_length",
];
const COUNTERS = ["too_old", "too_many", "batches", "updates", "episodes", "steps", "samples"];

function place(name) {
  const [known, counter] = [ORDER.indexOf(name), COUNTERS.indexOf(name)];
  if (known >= 0) return known;
  return ORDER.length + (counter < 0 ? 0 : 1 + counter);
}

const inOrder = ([a], [b]) => place(a) - place(b);

const multiples = new Map();
let shown = null;

function multiple(name) {
  const svg = drawn("svg", { class: "spark", role: "img", preserveAspectRatio: "none" });
  const made = small(name, svg, { text: words.named(name), title: words.meant(name) || null });
  mark(made.low, "title", "lowest");
  mark(made.high, "title", "highest");
  return made;
}

function drawMultiples({ diagnostics }) {
  const all = Object.entries(diagnostics)
    .filter(([, { rows }]) => rows.some((row) => row[1] !== null))
    .sort(inOrder);
  reveal(find("diagnostics"), all.length > 0);
  for (const [name, { rows }] of all) {
    if (!multiples.has(name)) {
      multiples.set(name, multiple(name));
      const after = all.slice(all.findIndex(([one]) => one === name) + 1);
      const next = after.find(([one]) => multiples.has(one));
      find("multiples").insertBefore(multiples.get(name).node, multiples.get(next?.[0])?.node ?? null);
    }
    const { node, svg, value, low, high } = multiples.get(name);
    const points = rows.filter((row) => row[1] !== null);
    const values = points.map((row) => row[1]);
    mark(node, "data-points", String(points.length));
    const newest = words.measured(name, values.at(-1));
    spark(svg, points, words.named(name), AXES.seconds, (point) => {
      say(value, point === null ? newest : `${words.measured(name, point[1])} at ${words.duration(point[0])}`);
    });
    if (!node.matches(":hover")) say(value, newest);
    say(low, `↓ ${words.measured(name, values.reduce((a, b) => Math.min(a, b)), false)}`);
    say(high, `↑ ${words.measured(name, values.reduce((a, b) => Math.max(a, b)), false)}`);
  }
}

// The way of an experience through GA3C: stations, and what goes on or waits at each.
const STATIONS = [
  ["agents", "agents", []],
  ["queue_prediction", "wait for a prediction", []],
  [
    "predictors",
    "predictors",
    [
      ["pps", "predictions/s"],
      ["prediction_batch", "in a batch"],
    ],
  ],
  ["queue_training", "wait for training", []],
  [
    "trainers",
    "trainers",
    [
      ["tps", "rollouts/s"],
      ["training_batch", "steps in a batch"],
      ["updates", "updates/s"],
      ["lag", "updates of lag"],
    ],
  ],
];

const GA3C = new Set(STATIONS.flatMap(([name, , more]) => [name, ...more.map(([key]) => key)]));

function drawStations(figures) {
  const root = find("ga3c-figures");
  if (!root.firstChild) root.append(element("ol", { class: "stations" }));
  const list = root.firstChild;
  const stations = STATIONS.filter(([name]) => name in figures);
  fit(list, stations.length, () =>
    element("li", {}, element("b"), element("span"), element("small")),
  );
  stations.forEach(([name, text, more], index) => {
    const [value, label, rest] = list.children[index].children;
    mark(list.children[index], "class", name.startsWith("queue") ? "queue" : "station");
    say(value, words.figure(figures[name]));
    say(label, text);
    say(
      rest,
      more
        .filter(([key]) => key in figures)
        .map(([key, word]) => `${words.figure(figures[key])} ${word}`)
        .join(" · "),
    );
  });
}

export function show({ run, learning }) {
  if (learning === shown) return;
  shown = learning;
  drawMultiples(learning);
  const { figures } = learning;
  const ga3c = run.backend === "ga3c" && "pps" in figures;
  reveal(find("ga3c"), ga3c);
  if (ga3c) drawStations(figures);
  const rest = Object.entries(figures).filter(
    ([name]) => !(ga3c && GA3C.has(name)) && !(name in learning.diagnostics),
  );
  reveal(find("measures"), rest.length > 0);
  facts(
    find("measures-list"),
    rest.sort(inOrder).map(([name, value]) => [
      words.named(name),
      words.measured(name, value),
      words.meant(name),
    ]),
  );
}
