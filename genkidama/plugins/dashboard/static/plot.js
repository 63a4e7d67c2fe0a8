// The same curves by Plotly, which the parent serves where it is installed.

import { range } from "./chart.js";
import { element } from "./dom.js";
import { extent, step, ticks } from "./scale.js";

let loading = null;

// Plotly, or null where it cannot be had.
export function load() {
  loading ??= new Promise((resolve) => {
    document.head.append(
      element("script", {
        src: "plotly.js",
        onload: () => resolve(window.Plotly ?? null),
        onerror: () => resolve(null),
      }),
    );
  });
  return loading;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const DASHES = { dash0: "solid", dash1: "dash", dash2: "dot", dash3: "dashdot" };

function traces({ series, axis, stepped }) {
  return series.map(({ name, points, style }) => {
    const [hue, dash = "dash0"] = style.split(" ");
    return {
      type: "scatter",
      mode: "lines",
      name,
      x: points.map((point) => point[0]),
      y: points.map((point) => point[1]),
      text: points.map((point) => axis.text(point[0])),
      hovertemplate:
        "%{text} · <b>%{y:,.1f}</b><extra>" +
        (series.length > 1 ? "%{fullData.name}" : "") +
        "</extra>",
      line: {
        color: colour(`--${hue}`),
        width: 2,
        dash: DASHES[dash],
        shape: stepped ? "hv" : "linear",
      },
    };
  });
}

function layout({ series, axis, goal, over }, width) {
  const soft = colour("--soft");
  const axes = {
    gridcolor: colour("--line"),
    linecolor: colour("--line"),
    zeroline: false,
    tickfont: { color: soft, size: 12 },
  };
  const xs = extent(series.flatMap(({ points }) => [points[0][0], points.at(-1)[0]])) ?? [0, 1];
  const named = ticks(...xs, axis.step(xs[1] - xs[0] || 1, width / 110));
  const ys = range(series, goal);
  const goals =
    goal === null || goal < ys[0] || goal > ys[1]
      ? []
      : [
          {
            type: "line",
            xref: "paper",
            x0: 0,
            x1: 1,
            y0: goal,
            y1: goal,
            line: { color: soft, width: 1, dash: "dash" },
            label: { text: `goal ${goal}`, textposition: "start", font: { color: soft, size: 12 } },
          },
        ];
  return {
    autosize: true,
    margin: { l: 48, r: 14, t: 8, b: 28 },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { family: "system-ui, sans-serif", color: colour("--ink") },
    showlegend: series.length > 1,
    legend: { orientation: "h", y: -0.12 },
    hovermode: "x",
    hoverlabel: {
      bgcolor: colour("--surface"),
      bordercolor: colour("--line"),
      font: { color: colour("--ink") },
    },
    // What somebody has zoomed into stays while the curve grows.
    uirevision: over,
    xaxis: { ...axes, range: xs, showgrid: false, tickvals: named, ticktext: named.map(axis.text) },
    yaxis: { ...axes, range: ys },
    shapes: goals,
  };
}

export class Plot {
  // A group, not an image: Plotly has things in it that take the focus.
  node = element("div", { class: "chart", role: "group" });
  #plotly;

  constructor(plotly) {
    this.#plotly = plotly;
  }

  show(spec) {
    this.#plotly.react(this.node, traces(spec), layout(spec, this.node.clientWidth || 800), {
      responsive: true,
      displaylogo: false,
      modeBarButtons: [["zoom2d", "pan2d", "resetScale2d"]],
    });
  }
}
