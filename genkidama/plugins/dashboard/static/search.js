// A search: its trials over time, what each setting did to the score, and the trials as a table.

import * as details from "./details.js";
import { drawn, facts, find, mark, reveal, say, small } from "./dom.js";
import { byName, extent, linear, roomy, spread } from "./scale.js";
import { Table } from "./table.js";
import { Timeline } from "./timeline.js";
import * as words from "./words.js";

let timeline = null;
let table = null;
let tabled = "";
let latest = [];
const scatters = new Map();

export function begin() {
  timeline = new Timeline();
  find("timeline").append(timeline.node);
}

const short = (name) => name.split(".").at(-1);

function columns(settings) {
  return [
    {
      name: "number",
      label: "trial",
      kind: (trial) => trial.state,
      spoken: (trial) => `trial ${trial.number}, ${trial.state}`,
      left: true,
    },
    { name: "state", left: true },
    {
      name: "score",
      hint: "at its newest phase",
      text: words.score,
    },
    { name: "phases", value: (trial) => trial.phases.length, from: "m" },
    ...settings.map((name) => ({
      name,
      label: short(name),
      hint: name,
      value: (trial) => trial.settings[name],
      text: words.setting,
      from: "m",
    })),
    {
      name: "nodes",
      value: nodes,
      title: nodes,
      left: true,
      wide: "text",
      from: "l",
    },
  ];
}

const nodes = (trial) => [...new Set(trial.phases.map(({ node }) => node))].join(", ");

function open({ number }) {
  details.open(`Trial ${number}`, () => {
    const trial = latest.find((one) => one.number === number);
    if (!trial) return null;
    return [
      ["state", trial.state],
      ["score", words.score(trial.score)],
      ...Object.entries(trial.settings).map(([name, value]) => [name, words.setting(value)]),
      ...trial.phases.map(({ node, from, to, score }, index) => [
        `phase ${index + 1}, ${node}`,
        `${words.duration(from)} to ${to === null ? "now" : words.duration(to)} · ${words.score(score)}`,
      ]),
    ];
  });
}

function drawTable({ settings, trials }) {
  if (table === null || tabled !== settings.join()) {
    tabled = settings.join();
    table = new Table({
      columns: columns(settings),
      key: (trial) => String(trial.number),
      open,
      order: (a, b) => b.number - a.number,
      label: "trials-title",
    });
    find("trials").replaceChildren(table.node);
  }
  latest = trials;
  table.show(trials);
}

// Numbers lie where they are, by their logarithm if they spread far; words side by side.
function places(values) {
  if (values.every((value) => typeof value === "number")) {
    const [low, high] = extent(values);
    const far = spread(values);
    const of = far ? Math.log : (value) => value;
    return {
      of,
      range: roomy([of(low), of(high)]),
      ends: [words.figure(low), `${words.figure(high)}${far ? " (log)" : ""}`],
    };
  }
  const names = [...new Set(values.map((value) => words.setting(value)))].sort(byName);
  return {
    of: (value) => names.indexOf(words.setting(value)),
    range: roomy([0, Math.max(1, names.length - 1)]),
    ends: [names[0], names.length > 1 ? names.at(-1) : ""],
  };
}

function drawScatter(name, { trials, best }) {
  if (!scatters.has(name)) {
    const svg = drawn("svg", { class: "scatter", role: "img" });
    scatters.set(name, small(name, svg, { text: short(name), title: name }));
    find("scatters").append(scatters.get(name).node);
  }
  const seen = trials.filter((trial) => trial.score !== null && name in trial.settings);
  const { node, svg, value, low, high } = scatters.get(name);
  mark(node, "data-points", String(seen.length));
  if (!seen.length) return;
  const { of, range, ends } = places(seen.map((trial) => trial.settings[name]));
  const x = linear(range, 6, 194);
  const y = linear(roomy(extent(seen.map((trial) => trial.score))), 92, 8);
  mark(svg, "viewBox", "0 0 200 100");
  mark(
    svg,
    "aria-label",
    `Score against ${name} of ${words.many(seen.length, "trial")}` +
      (best ? `; the best has ${words.setting(best.settings[name])}` : ""),
  );
  svg.replaceChildren(
    ...seen.map((trial) =>
      drawn(
        "circle",
        {
          class: trial.number === best?.trial ? "dot best" : "dot",
          cx: x(of(trial.settings[name])).toFixed(1),
          cy: y(trial.score).toFixed(1),
          r: trial.number === best?.trial ? 4.5 : 3,
        },
        drawn("title", {
          text: `trial ${trial.number}: ${words.setting(trial.settings[name])}, score ${words.score(trial.score)}`,
        }),
      ),
    ),
  );
  const first = svg.querySelector(".best");
  if (first) svg.append(first);
  say(value, best ? `best ${words.setting(best.settings[name])}` : "");
  say(low, ends[0]);
  say(high, ends[1]);
}

export function show({ search, run, time }, now) {
  reveal(find("search"), search !== null);
  if (search === null) return;
  const [shown, count] = [search.trials.length, search.count];
  const which = count > shown ? `${words.count(shown)} of ${words.count(count)} trials` : "";
  say(find("search-title"), `${which || "Trials"}, phase by phase: ${search.method}`);
  say(find("trials-title"), which || "All trials");
  const end = run.elapsed + (run.state === "training" ? now - time : 0);
  timeline.show(search.trials, search.nodes, end);
  for (const name of search.settings) drawScatter(name, search);
  const { best } = search;
  reveal(find("best"), best !== null);
  if (best !== null) {
    facts(find("best"), [
      ["best trial", String(best.trial)],
      ["score", words.score(best.score)],
      ...Object.entries(best.settings).map(([name, value]) => [short(name), words.setting(value), name]),
    ]);
  }
  drawTable(search);
}
