// The learning curve, with its numbers.

import { AXES, Lines, Numbers } from "./chart.js";
import { find, mark, reveal, say } from "./dom.js";

let lines = null;
const numbers = new Numbers();
let latest = null;

const chosen = () => document.querySelector("input[name=over]:checked").value;

export function begin() {
  lines = new Lines();
  find("curve").append(lines.node);
  find("curve").after(numbers.node);
  find("over").addEventListener("change", draw);
}

// [{name, curve: {columns, rows}, style}]
export function show(name, curves, goal, stepped = false) {
  const before = latest;
  latest = { name, curves, goal, stepped };
  if (!same(before, latest)) draw();
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
  };
  reveal(find("learning"), true);
  say(find("learning-title"), latest.name);
  const figure = find("curve");
  mark(figure, "data-points", String(series.reduce((sum, one) => sum + one.points.length, 0)));
  numbers.show(spec);
  lines.show(spec);
}
