// Draws the charts of the field story's page from the figures in #story. Colors are the page's own, read anew when the
// system's theme changes.
"use strict";

const story = JSON.parse(document.getElementById("story").textContent);
const steps_ms = [10, 20, 50, 100, 200, 500];
const latencies = ["itl_ms", "e2e_ms", "ttft_ms"];

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function milliseconds(value) {
  return value >= 1000 ? `${value / 1000} s` : `${value} ms`;
}

function plot(id, traces, layout) {
  const axis = { gridcolor: color("--line"), zeroline: false, linecolor: color("--line-strong"), fixedrange: true };
  Plotly.react(document.getElementById(id), traces, {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 46, r: 8, t: 6, b: 34 },
    font: { family: color("--sans"), size: 11, color: color("--ink-3") },
    showlegend: false,
    hovermode: "closest",
    hoverlabel: { bgcolor: color("--raised"), bordercolor: color("--line-strong"), font: { color: color("--ink") } },
    xaxis: { ...axis, showgrid: false, ...layout.xaxis },
    yaxis: { ...axis, ...layout.yaxis },
  }, { displayModeBar: false, responsive: true });
}

// Steps as a line that falls to 0 wherever the engine was idle.
function activity(steps) {
  const x = [0], y = [0];
  let end = 0;
  for (const [at, ms, tensor] of steps) {
    if (at > end + 1e-3) { x.push(end, at); y.push(0, 0); }
    end = at + ms / 1000;
    x.push(at, end);
    y.push(tensor, tensor);
  }
  x.push(end, story.timeline.seconds);
  y.push(0, 0);
  return { x, y };
}

function engine(role, ink) {
  const steps = story.timeline[role].steps;
  const range = { range: [0, story.timeline.seconds], ticksuffix: " s" };
  plot(`activity-${role}`, [{
    type: "scatter", mode: "lines", line: { width: 1, color: color(ink) }, fill: "tozeroy", ...activity(steps),
    hovertemplate: "%{x:.2f} s: tensor %{y:.0%}<extra></extra>",
  }], { xaxis: range, yaxis: { range: [0, 1.02], tickvals: [0, 0.5, 1], tickformat: ".0%" } });
  if (role === "prefill") return;
  plot(`gaps-${role}`, [{
    type: "scatter", mode: "markers", marker: { size: 3, color: color(ink) },
    x: steps.map(([at]) => at), y: steps.map(([, ms]) => ms), hovertemplate: "%{x:.2f} s: %{y:.4~g} ms<extra></extra>",
  }], { xaxis: range, yaxis: { type: "log", range: [1, 2.8], tickvals: steps_ms, ticktext: steps_ms.map(milliseconds) } });
}

function load(name) {
  const x = story.long.map((row) => row.rate);
  const traces = [["whole", "--mixed"], ["split", "--decode"]].map(([side, ink]) => ({
    type: "scatter", mode: "lines+markers", line: { color: color(ink), width: 2 }, marker: { size: 5 },
    x, y: story.long.map((row) => row[name][side]),
    hovertemplate: `${side}, %{x} req/s: %{y:.4~g} ms<extra></extra>`,
  }));
  const ticks = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000];
  plot(`load-${name}`, traces, {
    xaxis: { rangemode: "tozero", title: { text: "requests per second", standoff: 4 } },
    yaxis: { type: "log", tickvals: ticks, ticktext: ticks.map(milliseconds) },
  });
}

function all() {
  engine("mixed", "--mixed");
  engine("prefill", "--prefill");
  engine("decode", "--decode");
  latencies.forEach(load);
}

all();
matchMedia("(prefers-color-scheme: light)").addEventListener("change", all);
