// The learning curve: our own at first, Plotly's where it is there, with numbers beside both.

import { AXES, Lines, Numbers, described } from "./chart.js";
import { find, mark, reveal, say } from "./dom.js";
import { Plot, load } from "./plot.js";

// Plotly is 5 MB: a phone does without.
const WIDE_ENOUGH = matchMedia("(min-width: 720px)");

let lines = null;
let plot = null;
let asked = false;
const numbers = new Numbers();
let latest = null;

const chosen = () => document.querySelector("input[name=over]:checked").value;

export function begin() {
  lines = new Lines();
  find("curve").append(lines.node);
  find("curve").after(numbers.node);
  find("over").addEventListener("change", draw);
  addEventListener("theme", () => plot && draw());
}

// [{name, curve: {columns, rows}, style}]
export function show(name, curves, goal, plotly, stepped = false) {
  const before = latest;
  latest = { name, curves, goal, stepped };
  if (!same(before, latest)) draw();
  if (plotly && !asked && WIDE_ENOUGH.matches && !navigator.connection?.saveData) {
    asked = true;
    const idle = window.requestIdleCallback ?? ((work) => setTimeout(work, 500));
    idle(() => load().then(replace), { timeout: 4000 });
  }
}

// Messages bring new curves; between two of them there is nothing to draw.
function same(a, b) {
  return (
    a !== null &&
    a.name === b.name &&
    a.goal === b.goal &&
    a.curves.length === b.curves.length &&
    a.curves.every(
      (one, index) => one.curve === b.curves[index].curve && one.style === b.curves[index].style,
    )
  );
}

function replace(plotly) {
  if (plotly === null) return;
  plot = new Plot(plotly);
  draw();
}

function points({ columns, rows }, over) {
  const [x, y] = [columns.indexOf(over), columns.indexOf("mean_return")];
  return rows.filter((row) => row[x] !== null && row[y] !== null).map((row) => [row[x], row[y]]);
}

function draw() {
  if (!latest) return;
  const over = chosen();
  const series = latest.curves
    .map(({ name, curve, style }) => ({ name, style, points: points(curve, over) }))
    .filter((one) => one.points.length);
  const spec = {
    name: latest.name,
    series,
    axis: AXES[over],
    goal: latest.goal,
    stepped: latest.stepped,
    over,
  };
  reveal(find("learning"), true);
  say(find("learning-title"), latest.name);
  const figure = find("curve");
  mark(figure, "data-points", String(series.reduce((sum, one) => sum + one.points.length, 0)));
  numbers.show(spec);
  if (plot === null) {
    mark(figure, "data-drawn-by", "svg");
    lines.show(spec);
    return;
  }
  if (lines.node.isConnected) lines.node.replaceWith(plot.node);
  mark(figure, "data-drawn-by", "plotly");
  mark(
    plot.node,
    "aria-label",
    series
      .map((one) => described(series.length > 1 ? one.name : latest.name, one.points, spec.axis))
      .join(". "),
  );
  plot.show(spec);
}
