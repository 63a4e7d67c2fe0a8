// Curves as SVG, with axes, a readout below the pointer, and words for who does not see them.

import { drawn, element, mark, reveal, say } from "./dom.js";
import { evenly, extent, linear, nearest, roomy, step, ticks, timeStep, usual } from "./scale.js";
import { brief, duration, figure, tick } from "./words.js";

const LEFT = 46;
const RIGHT = 14;
const TOP = 12;
const BOTTOM = 24;
const WORST_GOAL = 3;
const LEAST_DRAG = 8;
const TABLE_ROWS = 24;

export const AXES = {
  seconds: { word: "time", text: duration, tick: duration, step: timeStep },
  steps: { word: "steps", text: brief, tick, step },
};

// M10 20L30 40…, or in steps: what holds until something better comes.
export function path(points, x, y, stepped = false) {
  return points
    .map(([a, b], index) => {
      const place = `${x(a).toFixed(1)} ${y(b).toFixed(1)}`;
      return index === 0 ? `M${place}` : `${stepped ? `H${x(a).toFixed(1)}L` : "L"}${place}`;
    })
    .join("");
}

// In words: where it began, where it is, and where it was highest.
function described(name, points, axis) {
  if (!points.length) return `${name}: nothing yet`;
  const [first, last] = [points[0], points.at(-1)];
  const best = points.reduce((a, b) => (b[1] > a[1] ? b : a));
  return (
    `${name} over ${axis.word}: from ${figure(first[1])} at ${axis.text(first[0])} to ` +
    `${figure(last[1])} at ${axis.text(last[0])}; highest ${figure(best[1])} at ${axis.text(best[0])}`
  );
}

// The same numbers as a table, which is filled when somebody opens it.
export class Numbers {
  #body = element("tbody");
  #head = element("tr");
  #spec = null;
  node;

  constructor() {
    this.node = element(
      "details",
      { class: "numbers", ontoggle: () => this.#fill() },
      element("summary", { text: "as a table" }),
      element(
        "div",
        { class: "scroll", tabindex: 0, role: "group", "aria-label": "The curve as a table" },
        element("table", {}, element("thead", {}, this.#head), this.#body),
      ),
    );
  }

  show(spec) {
    this.#spec = spec;
    this.#fill();
  }

  #fill() {
    if (!this.node.open || !this.#spec) return;
    const { name, series, axis } = this.#spec;
    const several = series.length > 1;
    const heads = [...(several ? ["run"] : []), axis.word, name.toLowerCase()];
    this.#head.replaceChildren(...heads.map((text) => element("th", { scope: "col", text })));
    const most = Math.max(3, Math.round(TABLE_ROWS / series.length));
    this.#body.replaceChildren(
      ...series.flatMap(({ name, points }) =>
        evenly(points, most).map(([x, y]) =>
          element(
            "tr",
            {},
            ...[...(several ? [name] : []), axis.text(x), figure(y)].map((text) =>
              element("td", { text }),
            ),
          ),
        ),
      ),
    );
  }
}

// Of each series the points in a span of x, or all of it where there is none.
function within(series, [low, high]) {
  const inside = series.map((one) => ({
    ...one,
    points: one.points.filter(([x]) => x >= low && x <= high),
  }));
  return inside.some(({ points }) => points.length) ? inside : series;
}

// The range that is shown of y: a goal far away does not flatten the curve.
function range(series, goal) {
  const found = extent(series.flatMap(({ points }) => points.map((point) => point[1]))) ?? [0, 1];
  const [low, high] = found;
  const near =
    goal !== null && Math.abs(goal - (goal > high ? high : low)) <= WORST_GOAL * (high - low);
  return roomy(near ? [Math.min(low, goal), Math.max(high, goal)] : found);
}

// Dragging zooms into a span of x; a double click, or the button, shows the whole curve again.
export class Lines {
  #svg = drawn("svg", { class: "lines", role: "img" });
  #readout = element("p", { class: "readout", "aria-hidden": "true" });
  #cursor = drawn("g", { class: "cursor", visibility: "hidden" });
  #band = drawn("rect", { class: "band", y: TOP, visibility: "hidden" });
  #whole = element("button", {
    class: "whole",
    type: "button",
    text: "whole curve",
    hidden: true,
    onclick: () => this.#zoom(null),
  });
  #spec = null;
  #x = null;
  #y = null;
  #span = null; // The values of x that are shown; null for all.
  #start = null; // Where a drag began, in pixels.
  node;

  constructor() {
    this.node = element("div", { class: "chart" }, this.#svg, this.#readout, this.#whole);
    new ResizeObserver(() => this.#draw()).observe(this.node);
    const on = (name, react) => this.#svg.addEventListener(name, react);
    on("pointermove", (event) => this.#point(event));
    on("pointerleave", () => this.#leave());
    on("dblclick", () => this.#zoom(null));
    // A finger scrolls the page.
    on("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button) return;
      this.#start = this.#left(event);
      this.#svg.setPointerCapture(event.pointerId);
    });
    on("pointerup", (event) => this.#release(this.#left(event)));
  }

  // {name, series: [{name, points, style}], axis, goal, stepped}
  show(spec) {
    if (spec.axis !== this.#spec?.axis) this.#span = null;
    this.#spec = spec;
    this.#draw();
  }

  #left(event) {
    return event.clientX - this.#svg.getBoundingClientRect().left;
  }

  #zoom(span) {
    this.#span = span;
    this.#leave();
    this.#draw();
  }

  #release(left) {
    const start = this.#start;
    this.#start = null;
    mark(this.#band, "visibility", "hidden");
    if (start === null || Math.abs(left - start) < LEAST_DRAG) return;
    const [low, high] = this.#x.domain;
    const value = (place) => {
      const share = (place - LEFT) / (this.node.clientWidth - RIGHT - LEFT);
      return low + Math.min(1, Math.max(0, share)) * (high - low);
    };
    this.#zoom([value(Math.min(start, left)), value(Math.max(start, left))]);
  }

  #draw() {
    const [width, height] = [this.node.clientWidth, this.node.clientHeight];
    if (!this.#spec || !width || !height) return;
    const { name, series, axis, goal, stepped } = this.#spec;
    const xs = this.#span ?? extent(
      series.flatMap(({ points }) =>
        [points[0], points.at(-1)].filter(Boolean).map((point) => point[0]),
      ),
    ) ?? [0, 1];
    const ys = range(within(series, xs), goal);
    reveal(this.#whole, this.#span !== null);
    this.#x = Object.assign(linear(xs, LEFT, width - RIGHT), { domain: xs });
    this.#y = linear(ys, height - BOTTOM, TOP);
    const [x, y] = [this.#x, this.#y];
    mark(this.#svg, "viewBox", `0 0 ${width} ${height}`);
    mark(
      this.#svg,
      "aria-label",
      series
        .map((one) => described(series.length > 1 ? one.name : name, one.points, axis))
        .join(". "),
    );
    const marks = [];
    const [up, along] = [
      step(ys[1] - ys[0], height / 48),
      axis.step(xs[1] - xs[0] || 1, width / 90),
    ];
    for (const value of ticks(...ys, up)) {
      marks.push(
        drawn("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
        drawn("text", {
          class: "tick",
          x: LEFT - 8,
          y: y(value) + 4,
          "text-anchor": "end",
          text: tick(value, up),
        }),
      );
    }
    for (const value of ticks(...xs, along)) {
      const end = x(value) > width - RIGHT - 14 ? "end" : "middle";
      marks.push(
        drawn("text", {
          class: "tick",
          x: x(value),
          y: height - 6,
          "text-anchor": end,
          text: axis.tick(value, along),
        }),
      );
    }
    if (goal !== null && goal >= ys[0] && goal <= ys[1]) {
      marks.push(
        drawn("line", { class: "goal", x1: LEFT, x2: width - RIGHT, y1: y(goal), y2: y(goal) }),
        drawn("text", { class: "tick", x: LEFT + 4, y: y(goal) - 5, text: `goal ${figure(goal)}` }),
      );
    }
    // A picture in the picture: it cuts off what lies outside of the span.
    const curves = drawn("svg", {
      x: LEFT - 4,
      width: width - RIGHT - LEFT + 8,
      height,
      viewBox: `${LEFT - 4} 0 ${width - RIGHT - LEFT + 8} ${height}`,
    });
    for (const { points, style } of series) {
      if (!points.length) continue;
      const [lastX, lastY] = points.at(-1);
      curves.append(
        drawn("path", { class: `curve ${style}`, d: path(points, x, y, stepped) }),
        drawn("circle", { class: `end ${style}`, cx: x(lastX), cy: y(lastY), r: 3.5 }),
      );
    }
    this.#svg.replaceChildren(...marks, curves, this.#band, this.#cursor);
  }

  #point(event) {
    if (!this.#spec || !this.#x) return;
    const { axis } = this.#spec;
    const left = this.#left(event);
    if (this.#start !== null) {
      mark(this.#band, "visibility", "visible");
      mark(this.#band, "x", String(Math.min(this.#start, left)));
      mark(this.#band, "width", String(Math.abs(left - this.#start)));
      mark(this.#band, "height", String(this.node.clientHeight - BOTTOM - TOP));
    }
    const found = within(this.#spec.series, this.#x.domain)
      .filter(({ points }) => points.length)
      .map(({ name, points, style }) => {
        const low = points[0][0];
        const high = points.at(-1)[0];
        const share = (left - this.#x(low)) / (this.#x(high) - this.#x(low) || 1);
        return { name, style, point: points[nearest(points, low + share * (high - low))] };
      });
    if (!found.length) return;
    const at = found.reduce((a, b) =>
      Math.abs(this.#x(b.point[0]) - left) < Math.abs(this.#x(a.point[0]) - left) ? b : a,
    );
    const x = this.#x(at.point[0]);
    this.#cursor.replaceChildren(
      drawn("line", { x1: x, x2: x, y1: TOP, y2: this.node.clientHeight - BOTTOM }),
      ...found.map(({ style, point }) =>
        drawn("circle", {
          class: `end ${style}`,
          cx: this.#x(point[0]),
          cy: this.#y(point[1]),
          r: 4.5,
        }),
      ),
    );
    mark(this.#cursor, "visibility", "visible");
    const told = found.map(({ name, point }) =>
      found.length > 1 ? `${name} ${figure(point[1])}` : figure(point[1]),
    );
    say(this.#readout, [axis.text(at.point[0]), ...told].join(" · "));
  }

  #leave() {
    mark(this.#cursor, "visibility", "hidden");
    say(this.#readout, "");
  }
}

// A small curve without axes; its lowest and highest value stand beside it. A few outliers leave it,
// so that they do not flatten the rest. `hover` is told the point below the pointer, or null.
export function spark(svg, points, name, axis, hover = () => {}) {
  const [width, height] = [160, 44];
  const ys = usual(points.map((point) => point[1])) ?? [0, 1];
  svg.onpointermove = (event) => {
    const box = svg.getBoundingClientRect();
    const at = points[0][0] + ((event.clientX - box.left) / box.width) * (points.at(-1)[0] - points[0][0]);
    hover(points[nearest(points, at)]);
  };
  svg.onpointerleave = () => hover(null);
  const x = linear([points[0][0], points.at(-1)[0]], 2, width - 4);
  const y = linear(roomy(ys, 0.02), height - 3, 3);
  mark(svg, "viewBox", `0 0 ${width} ${height}`);
  mark(svg, "aria-label", described(name, points, axis));
  svg.replaceChildren(
    drawn("path", {
      class: "curve s0",
      d: path(points, x, y),
      "vector-effect": "non-scaling-stroke",
    }),
  );
}
