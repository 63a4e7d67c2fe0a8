// The children: one row each, and all that is known of one in a dialog.

import * as details from "./details.js";
import { find, reveal, say } from "./dom.js";
import { Table } from "./table.js";
import * as words from "./words.js";

// From so many children on there is a field to find one.
const MANY = 12;

const collator = new Intl.Collator("en", { numeric: true });
const away = (child) => child.state === "away";
const seen = (child, now) => now - (child.exchanged ?? child.since);
const alive = (value) => (child) => (away(child) ? null : value(child));

function column(name, label, hint, value, text, look = {}) {
  return { name, label, hint, value, text: (child, now) => text(value(child, now), child), ...look };
}

const plain = (key) => (child) => child[key];

const COLUMNS = [
  column("name", "child", "its name; all that is known of it opens here", plain("name"), (name) => name, { left: true, wide: "name", kind: (child) => child.state, spoken: (child) => `${child.name}, ${child.state}` }),
  column("state", "state", "whether it is here, and why it is not", (child) => (away(child) ? `away: ${child.why}` : child.state), (_, child) => (away(child) ? `away${child.why ? `: ${child.why}` : ""}` : child.state), { left: true, wide: "text", from: "m", title: (child) => child.why }),
  column("seen", "last seen", "since its last exchange", seen, (value) => words.ago(value)),
  column("return", "return", "of its last episode", plain("last_return"), words.score),
  column("speed", "steps/s", "environment steps a second", alive(plain("steps_per_second")), words.count),
  column("staleness", "stale", "pushes of others since its last answer", alive(plain("staleness")), words.count, { from: "m" }),
  column("distance", "distance", "how far its weights lay from the parent's at its last push, as a share of these", plain("distance"), (value) => words.fixed(value, 4), { from: "l" }),
  column("updates", "updates", "exchanges made", plain("updates"), words.count, { from: "l" }),
  column("round_trip", "round trip", "there and back on the network", alive(plain("round_trip")), words.milliseconds, { from: "l" }),
  column("steps", "steps", "environment steps made", plain("steps"), words.brief, { from: "xl" }),
  column("lag", "lag", "updates between acting and learning", alive(plain("lag")), (value) => words.fixed(value, 1), { from: "xl" }),
  column("bytes", "traffic", "bytes to the parent and from it", (child) => child.bytes_in + child.bytes_out, words.bytes, { from: "xl" }),
];

const order = (a, b) => away(a) - away(b) || collator.compare(a.name, b.name);

let table = null;
let latest = { children: [], now: 0 };

function facts(child, now) {
  const pairs = [
    ["state", child.state],
    ["why", child.why],
    ["last exchange", child.exchanged === null ? "none yet" : `${words.ago(seen(child, now))} (${words.clock(child.exchanged)})`],
    ["here since", words.clock(child.since)],
    ["last return", words.score(child.last_return)],
    ["steps a second", words.count(child.steps_per_second)],
    ["steps", words.count(child.steps)],
    ["updates", words.count(child.updates)],
    ["staleness", words.many(child.staleness, "push", "pushes")],
    ["distance from the parent", words.figure(child.distance)],
    ["round trip", words.milliseconds(child.round_trip)],
    ["lag", words.figure(child.lag)],
    ["bytes to the parent", words.bytes(child.bytes_in)],
    ["bytes to the child", words.bytes(child.bytes_out)],
    ["address", child.address],
    ["machine", child.host],
    ["cores", words.count(child.cores)],
    ["software", child.software],
    ...Object.entries(child.figures).map(([name, value]) => [words.named(name), words.figure(value)]),
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
  const { children, now } = latest;
  const found = children.filter((child) => child.name.toLowerCase().includes(wanted)
    || (child.address ?? "").includes(wanted) || child.host.toLowerCase().includes(wanted));
  const there = children.filter((child) => !away(child)).length;
  const gone = children.length - there;
  const here = `${words.count(there)} here${gone ? `, ${words.count(gone)} away` : ""}`;
  say(find("children-count"), (children.length ? here : "none has joined yet")
    + `${wanted ? `, ${words.count(found.length)} found` : ""}`);
  table.show(found, now);
}

export function begin() {
  table = new Table({ columns: COLUMNS, key: (child) => child.name, open, order, label: "children-title" });
  find("children-table").append(table.node);
  find("find-text").addEventListener("input", draw);
}

export function show({ children }, now) {
  latest = { children, now };
  reveal(find("children"), true);
  reveal(find("find"), children.length > MANY);
  draw();
}
