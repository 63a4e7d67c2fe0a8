// Who trained which trial when, phase by phase: a row for each node, a bar for each phase.

import { drawn, element, mark } from "./dom.js";
import { byName, extent, linear, ticks, timeStep } from "./scale.js";
import { duration, score } from "./words.js";

const ROW = 26;
const BAR = 18;
const FOOT = 22;
const SHADES = 5;
const MARKS = { stopped: "×", failed: "!", finished: "✓" };

// The shade of a score, from 0 (the worst) to 4 (the best).
function shade(value, range) {
  if (value === null || range === null) return "none";
  const share = range[1] > range[0] ? (value - range[0]) / (range[1] - range[0]) : 1;
  return String(Math.min(SHADES - 1, Math.floor(share * SHADES)));
}

export class Timeline {
  #svg = drawn("svg", { class: "timeline", role: "img" });
  #key = element(
    "p",
    { class: "legend soft" },
    element("span", { text: "score " }),
    ...["0", "1", "2", "3", "4"].map((level) =>
      element("i", { class: "shade", "data-shade": level }),
    ),
    element("span", { text: " worst to best · × stopped · ✓ finished · ! failed" }),
  );
  #spec = null;
  node;

  constructor() {
    this.#box = element(
      "div",
      { class: "scroll tall", role: "group", tabindex: 0, "aria-label": "Timeline of the trials" },
      this.#svg,
    );
    this.node = element("figure", {}, this.#box, this.#key);
    new ResizeObserver(() => this.#draw()).observe(this.#box);
  }

  #box;

  show(trials, nodes, end) {
    this.#spec = { trials, nodes, end };
    this.#draw();
  }

  #draw() {
    const width = this.#box.clientWidth;
    if (!this.#spec || !width) return;
    const { trials, end } = this.#spec;
    const used = new Set(trials.flatMap(({ phases }) => phases.map(({ node }) => node)));
    const nodes = [...new Set([...this.#spec.nodes, ...used])].sort(byName);
    const longest = nodes.reduce((most, name) => Math.max(most, name.length), 0);
    const left = Math.min(width * 0.3, 14 + 7 * longest);
    const x = linear([0, end || 1], left, width - 14);
    const range = extent(
      trials
        .flatMap(({ phases }) => phases.map((phase) => phase.score))
        .filter((value) => value !== null),
    );
    const bottom = nodes.length * ROW;
    const marks = [];
    for (const time of ticks(0, end, timeStep(end || 1, width / 90))) {
      marks.push(
        drawn("line", { class: "grid", x1: x(time), x2: x(time), y1: 0, y2: bottom }),
        drawn("text", {
          class: "tick",
          x: x(time),
          y: bottom + 15,
          "text-anchor": x(time) > width - 30 ? "end" : "middle",
          text: duration(time),
        }),
      );
    }
    nodes.forEach((name, row) => {
      const room = Math.floor((left - 10) / 7);
      const text = name.length > room ? `${name.slice(0, room - 1)}…` : name;
      marks.push(
        drawn(
          "text",
          { class: "label", x: 0, y: row * ROW + 17, text },
          drawn("title", { text: name }),
        ),
      );
    });
    for (const trial of trials) marks.push(...this.#bars(trial, nodes, x, end, range));
    mark(this.#svg, "height", String(bottom + FOOT));
    mark(this.#svg, "viewBox", `0 0 ${width} ${bottom + FOOT}`);
    const told = `${trials.length} trials on ${nodes.length} nodes over ${duration(end)}`;
    mark(this.#svg, "aria-label", `${told}; the table of the trials has the same.`);
    this.#svg.replaceChildren(...marks);
  }

  #bars({ number, state, phases }, nodes, x, end, range) {
    return phases.map((phase, index) => {
      const [from, to] = [x(phase.from), x(phase.to ?? end)];
      const y = nodes.indexOf(phase.node) * ROW + (ROW - BAR) / 2;
      const group = drawn("g", {
        class: "phase",
        "data-shade": shade(phase.score, range),
        "data-running": phase.to === null,
      });
      const told = phase.score === null ? "no score yet" : `score ${score(phase.score)}`;
      group.append(
        drawn("title", {
          text: `trial ${number}, phase ${index + 1}: ${told}, ${duration(phase.from)} to ${phase.to === null ? "now" : duration(phase.to)}`,
        }),
        drawn("rect", { x: from, y, width: Math.max(1.5, to - from - 1), height: BAR, rx: 2 }),
      );
      const begins = index === 0 || phases[index - 1].node !== phase.node;
      if (begins && to - from > 8 + 7 * String(number).length) {
        group.append(drawn("text", { x: from + 4, y: y + 13, text: String(number) }));
      }
      if (index === phases.length - 1 && state in MARKS && to - from > 34) {
        const place = { x: to - 6, y: y + 13, "text-anchor": "end" };
        group.append(drawn("text", { class: "mark", ...place, text: MARKS[state] }));
      }
      return group;
    });
  }
}
