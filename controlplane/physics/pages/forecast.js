// Draws the two charts of a forecast's page from the figures in #curves. Colors are the page's own, read anew when the
// system's theme changes.
"use strict";

const curves = JSON.parse(document.getElementById("curves").textContent);
const dashes = ["solid", "dash", "dot", "dashdot"];
const strokes = { solid: "", dash: "6 3", dot: "2 2", dashdot: "6 3 2 3" };

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function look(index, best) {
  return { ink: index % 2 ? "--ink-3" : "--ink", dash: dashes[Math.floor(index / 2) % dashes.length], width: best ? 2.4 : 1.4 };
}

// Round numbers for a log axis, with the unit in each label: 1, 2 and 5 of every decade, or decades alone where they are many.
function ticks(points) {
  const all = points.flat();
  const least = Math.floor(Math.log10(Math.min(...all))), most = Math.ceil(Math.log10(Math.max(...all)));
  const at = [];
  for (let power = least; power <= most; power += 1) for (const digit of most - least > 3 ? [1] : [1, 2, 5]) at.push(digit * 10 ** power);
  return { tickvals: at, ticktext: at.map((value) => (value >= 1000 ? `${value / 1000} s` : `${+value.toPrecision(1)} ms`)) };
}

function draw(id, key, limit) {
  const node = document.getElementById(id);
  const traces = curves.layouts
    .map((layout, index) => ({ layout, style: look(index, layout.best), points: layout[key] }))
    .filter(({ points }) => points.length)
    .map(({ layout, style, points }) => ({
      type: "scatter",
      mode: "lines",
      name: "",
      x: points.map(([, value]) => value),
      y: points.map(([share]) => 1 - share),
      customdata: points.map(([share]) => `p${+(100 * share).toPrecision(4)}`),
      hovertemplate: `${layout.mode} %{customdata}: %{x:.4~g} ms`,
      line: { color: color(style.ink), width: style.width, dash: style.dash },
    }));
  if (!traces.length) {
    node.textContent = "Nothing was served.";
    return;
  }
  const grid = color("--line"), ink = color("--ink-3");
  Plotly.react(node, traces, {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 48, r: 12, t: 20, b: 32 },
    font: { family: color("--sans"), size: 11, color: ink },
    showlegend: false,
    hovermode: "closest",
    hoverlabel: { bgcolor: color("--raised"), bordercolor: color("--line-strong"), font: { color: color("--ink") } },
    xaxis: { type: "log", showgrid: false, linecolor: color("--line-strong"), ...ticks([...traces.map(({ x }) => x), [limit]]) },
    yaxis: {
      type: "log", range: [-3.3, 0.05], gridcolor: grid, zeroline: false,
      tickvals: [1, 0.1, 0.01, 0.001], ticktext: ["100 %", "10 %", "1 %", "0.1 %"],
    },
    shapes: [
      { type: "line", xref: "x", yref: "paper", x0: limit, x1: limit, y0: 0, y1: 1, line: { color: color("--bad"), width: 1, dash: "dash" } },
      { type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: 0.01, y1: 0.01, line: { color: ink, width: 1, dash: "dot" } },
    ],
    annotations: [
      { xref: "x", yref: "paper", x: Math.log10(limit), y: 1, yanchor: "bottom", showarrow: false, text: `SLO ${limit >= 1000 ? `${limit / 1000} s` : `${limit} ms`}`, font: { color: color("--bad") } },
      { xref: "paper", yref: "y", x: 1, xanchor: "right", y: -2, yanchor: "bottom", showarrow: false, text: "p99" },
    ],
  }, { displayModeBar: false, responsive: true });
}

// The names of the lines, in the panel's header instead of a legend.
function keys(panel, key) {
  const place = panel.querySelector(".keys");
  place.replaceChildren(...curves.layouts.map((layout, index) => {
    const style = look(index, layout.best);
    const entry = document.createElement("span");
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [name, value] of Object.entries({ x1: 0, x2: 22, y1: 4, y2: 4, stroke: color(style.ink), "stroke-width": style.width })) line.setAttribute(name, value);
    if (strokes[style.dash]) line.setAttribute("stroke-dasharray", strokes[style.dash]);
    svg.append(line);
    entry.append(svg, layout.name);
    return entry;
  }));
}

function all() {
  for (const [id, key] of [["ttft", "ttft_ms"], ["itl", "itl_ms"]]) {
    const node = document.getElementById(id);
    keys(node.closest(".panel"), key);
    draw(id, key, curves.slo[key]);
  }
}

all();
matchMedia("(prefers-color-scheme: light)").addEventListener("change", all);
