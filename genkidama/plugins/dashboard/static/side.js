// About the run: its rule, refusals by reason, parts of the parent.

import { facts, find, reveal } from "./dom.js";
import { byName } from "./scale.js";
import { Table } from "./table.js";
import * as words from "./words.js";

let parts = null;

// A page is told by one part, and knows of the others what children show.
const PART_STATES = {
  there: "children exchange with all parts or with none, and of late they did",
  unknown: "no child has exchanged of late, which it does with all parts or with none",
};

const PARTS = [
  {
    name: "part",
    kind: (part) => part.state,
    left: true,
  },
  {
    name: "state",
    title: (part) => PART_STATES[part.state],
    left: true,
  },
  {
    name: "numbers",
    label: "size",
    hint: "numbers of the vector that it holds",
    text: words.brief,
  },
];

export function begin() {
  parts = new Table({
    columns: PARTS,
    key: (part) => String(part.part),
    order: (a, b) => a.part - b.part,
    label: "parts-title",
  });
  find("parts-table").append(parts.node);
}

// α and β are null where nothing is blended.
const meaningful = (value) => (value === null ? "" : words.figure(value));

function about({ run, learning, evaluation = null, settings = {} }) {
  return [
    ["environment", run.environment],
    ["algorithm", run.algorithm],
    ["backend", run.backend],
    ["rule", run.rule, run.cooperation],
    [
      "α",
      meaningful(run.alpha),
      "how much of a child's weights the parent takes at each exchange",
    ],
    [
      "β",
      meaningful(run.beta),
      "how much of the parent's weights a child takes at each exchange",
    ],
    ["version", words.count(learning.version), "pushes that the parent has applied"],
    ["started", words.clock(run.started)],
    ["software", run.software],
    [
      "evaluated",
      evaluation === null
        ? ""
        : `${words.score(evaluation.mean)} ± ${words.figure(evaluation.std)} over ${words.many(evaluation.episodes, "episode")}`,
    ],
    ...Object.entries(settings).map(([name, value]) => [
      name,
      words.setting(value),
      "a setting that is not the default",
    ]),
  ].filter(([, value]) => value);
}

export function show(document) {
  const { refusals } = document;
  const codes = Object.entries(refusals).sort(
    (a, b) => b[1] - a[1] || byName(a[0], b[0]),
  );
  reveal(find("refusals"), codes.length > 0);
  facts(
    find("refusals-list"),
    codes.map(([code, times]) => [
      words.refused(code) || code,
      words.count(times),
      `code “${code}”`,
      "warn",
    ]),
  );
  reveal(find("parts"), document.parts !== null);
  if (document.parts !== null) parts.show(document.parts);
  reveal(find("facts"), true);
  facts(find("facts-list"), about(document));
}
