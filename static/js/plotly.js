// Plotly as all charts use it: loaded lazily from the wheel's file, with one template made of the design's tokens.
import { el } from "./dom.js";
import { gettext } from "./i18n.js";
import { isUtc } from "./zone.js";

// When it loads, Plotly writes MapLibre's sheet into the page unless an element of this id is there. We show no maps, and
// the content policy would refuse the sheet with an error in the console.
const MAP_SHEET = "9f215cf04c5486422605d13261cb87401f4e7763b6296af81e98efbc0130da53";

export const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false, scrollZoom: false, showTips: false };

let loading = null;

export function plotly(url) {
  if (!document.getElementById(MAP_SHEET)) document.head.append(el("meta", { id: MAP_SHEET }));
  loading ??= new Promise((resolve, reject) => {
    const script = el("script", { src: url });
    script.onload = () => resolve(globalThis.Plotly);
    script.onerror = () => {
      loading = null;
      script.remove();
      reject(new Error(gettext("the chart library did not load")));
    };
    document.head.append(script);
  });
  return loading;
}

// Plotly reads a little markup in texts, and names are hostile.
export const plain = (words) => words.replace(/[&<>]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[sign]);

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function scale(name) {
  const colors = css(name).split(/\s+/);
  return colors.map((color, index) => [index / (colors.length - 1), color]);
}

// Plotly knows no zones: hand it the wall clock of the viewer's choice as if it were UTC.
export function wall(unixSeconds) {
  const date = new Date(unixSeconds * 1000);
  return new Date(date.getTime() - (isUtc() ? 0 : date.getTimezoneOffset() * 60000)).toISOString().slice(0, 19);
}

// What every layout begins with; read anew after a change of theme.
export function template() {
  const line = css("--line-strong");
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 0, r: 0, t: 16, b: 18 },
    font: { family: css("--sans"), size: 11, color: css("--ink-3") },
    colorway: ["--ink", "--ink-3", "--prefill", "--decode", "--mixed"].map(css),
    dragmode: false,
    showlegend: false,
    xaxis: { type: "date", showgrid: false, zeroline: false, fixedrange: true, linecolor: line },
    yaxis: { gridcolor: css("--line"), zeroline: false, fixedrange: true, rangemode: "tozero" },
    hoverlabel: { bgcolor: css("--raised"), bordercolor: line, font: { color: css("--ink") } },
  };
}
