// The children: one row each, and all that is known of one in a dialog.

import * as details from "./details.js";
import { find, reveal, say } from "./dom.js";
import { byName } from "./scale.js";
import { Table } from "./table.js";
import * as words from "./words.js";

// From so many children on there is a field to find one.
const MANY = 12;

const away = (child) => child.state === "away";
const seen = (child, now) => now - (child.exchanged ?? child.since);
const alive = (value) => (child) => (away(child) || latest.over ? null : value(child));

const plain = (key) => (child) => child[key];

const kind = (child) => (latest.over && !away(child) ? "done" : child.state);

function state(child) {
  return away(child) && child.why ? `away: ${child.why}` : kind(child);
}

const COLUMNS = [
  {
    name: "name",
    label: "child",
    hint: "its name; all that is known of it opens here",
    kind,
    spoken: (child) => `${child.name}, ${kind(child)}`,
    left: true,
    wide: "name",
  },
  {
    name: "state",
    hint: "whether it is here, and why it is not",
    value: state,
    title: plain("why"),
    left: true,
    wide: "text",
    from: "m",
  },
  {
    name: "seen",
    label: "last seen",
    hint: "since its last exchange",
    value: seen,
    text: words.ago,
  },
  {
    name: "return",
    hint: "of its last episode",
    value: plain("last_return"),
    text: words.score,
  },
  {
    name: "speed",
    label: "steps/s",
    hint: "environment steps a second",
    value: alive(plain("steps_per_second")),
    text: words.count,
  },
  {
    name: "staleness",
    label: "stale",
    hint: "pushes of others since its last answer",
    value: alive(plain("staleness")),
    text: words.count,
    from: "m",
  },
  {
    name: "distance",
    hint: "how far its weights lay from the parent's at a push, as a share of these",
    text: (value) => words.fixed(value, 4),
    from: "l",
  },
  {
    name: "updates",
    label: "exchanges",
    hint: "exchanges that it has made",
    text: words.count,
    from: "l",
  },
  {
    name: "round_trip",
    label: "round trip",
    hint: "there and back on the network",
    value: alive(plain("round_trip")),
    text: words.milliseconds,
    wide: "head",
    from: "l",
  },
  {
    name: "steps",
    hint: "environment steps made",
    text: words.brief,
    from: "xl",
  },
  {
    name: "lag",
    hint: "updates between acting and learning",
    value: alive(plain("lag")),
    text: (value) => words.fixed(value, 1),
    from: "xl",
  },
  {
    name: "bytes_in",
    label: "sent",
    hint: "bytes from it to the parent, on this connection",
    value: (child) => child.bytes_in || null,
    text: words.bytes,
    from: "xl",
  },
  {
    name: "bytes_out",
    label: "received",
    hint: "bytes from the parent to it, on this connection",
    value: (child) => child.bytes_out || null,
    text: words.bytes,
    from: "xl",
  },
  {
    name: "cores",
    hint: "core processes that it trains with",
    text: words.count,
    from: "xxl",
  },
  {
    name: "software",
    hint: "version of Genkidama that it runs",
    from: "xxl",
  },
];

const order = (a, b) => away(a) - away(b) || byName(a.name, b.name);

let table = null;
let latest = { children: [], now: 0, over: false };

function facts(child, now) {
  const pairs = [
    ["state", child.state],
    ["why", child.why],
    [
      "last exchange",
      child.exchanged === null
        ? "none yet"
        : `${words.ago(seen(child, now))} (${words.clock(child.exchanged)})`,
    ],
    ["here since", words.clock(child.since)],
    ["last return", words.score(child.last_return)],
    ["steps a second", words.count(child.steps_per_second)],
    ["steps", words.count(child.steps)],
    ["exchanges", words.count(child.updates)],
    ["staleness", words.many(child.staleness, "push", "pushes")],
    ["distance from the parent", words.figure(child.distance)],
    ["round trip", words.milliseconds(child.round_trip)],
    ["lag", words.figure(child.lag)],
    ["bytes to the parent", words.bytes(child.bytes_in)],
    ["bytes to the child", words.bytes(child.bytes_out)],
    ["address", child.address],
    ["cores", words.count(child.cores)],
    ["software", child.software],
    ...Object.entries(child.figures).map(([name, value]) => [
      words.named(name),
      words.measured(name, value),
    ]),
  ];
  return pairs.filter(([, value]) => value && value !== words.NOTHING);
}

function open({ name }) {
  details.open(name, () => {
    const child = latest.children.find((one) => one.name === name);
    return child ? facts(child, latest.now) : null;
  });
}

function draw() {
  const wanted = find("find-text").value.trim().toLowerCase();
  const { children, now, over } = latest;
  const matches = (child) =>
    child.name.toLowerCase().includes(wanted) || (child.address ?? "").includes(wanted);
  const found = wanted ? children.filter(matches) : children;
  const there = children.filter((child) => !away(child)).length;
  const gone = children.length - there;
  const here = over
    ? words.count(children.length)
    : `${words.count(there)} here${gone ? `, ${words.count(gone)} away` : ""}`;
  say(
    find("children-count"),
    (children.length ? here : "none has joined yet") +
      (wanted ? `, ${words.count(found.length)} found` : ""),
  );
  table.show(found, now);
}

export function begin() {
  table = new Table({
    columns: COLUMNS,
    key: (child) => child.name,
    open,
    order,
    label: "children-title",
  });
  find("children-table").append(table.node);
  find("find-text").addEventListener("input", draw);
}

export function show({ children, run }, now) {
  latest = { children, now, over: run.state === "over" };
  reveal(find("children"), true);
  reveal(find("find"), children.length > MANY);
  draw();
}
