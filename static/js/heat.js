// GPU × time, hue = role, brightness = work. Loaded after the page is usable; Plotly comes lazily from the wheel's file.
import { el, text } from "./dom.js";
import { byLabel, ROLE } from "./engines.js";
import { clockSeconds, number } from "./format.js";
import { HeatData } from "./heatdata.js";
import { gettext, ngettext } from "./i18n.js";
import { CONFIG, css, plain, plotly, scale, template, wall } from "./plotly.js";
import { takeAway } from "./takeaway.js";

const RANGES = [
  { span: 900, step: 5, word: gettext("15 min"), cell: gettext("5 s per cell") },
  { span: 7200, step: 50, word: gettext("2 h"), cell: gettext("50 s per cell") },
];
const GROUPS = [
  ["p", "prefill"],
  ["d", "decode"],
  ["m", "mixed"],
];
const DRAW_EVERY_MS = 5000;
const ROW_PX = [3, 16]; // a GPU's row is never thinner or thicker
const MOST_PX = 340;
const EDGES = { l: 66, r: 0, t: 4, b: 20 };

// [{letter, word, gpus: [{uuid, name}]}]: by pool, then engine, then GPU; GPUs of no engine come last.
function groupsOf(rows, known) {
  const engines = [...rows.of("engine")].sort((a, b) => a.model.localeCompare(b.model) || byLabel(a, b));
  const taken = new Set();
  const gpusOf = (engine) =>
    engine.gpu_uuids.map((uuid, index) => {
      taken.add(uuid);
      return { uuid, name: plain(`${engine.label} · ${engine.model} · ${engine.node} GPU ${engine.gpu_indices[index]}`) };
    });
  const groups = GROUPS.map(([letter, role]) => ({
    letter,
    word: ROLE[role].word,
    gpus: engines.filter((engine) => engine.role === role).flatMap(gpusOf),
  }));
  const spare = known.filter((uuid) => !taken.has(uuid)).map((uuid) => ({ uuid, name: plain(uuid) }));
  return [...groups, { letter: "s", word: gettext("Spare"), gpus: spare }].filter(({ gpus }) => gpus.length);
}

// Rows top to bottom with an empty one between groups, and where each group starts.
function rowsOf(groups) {
  const list = [];
  const labels = [];
  for (const group of groups) {
    if (list.length) list.push(null);
    labels.push({ ...group, at: list.length });
    list.push(...group.gpus);
  }
  return { list, labels };
}

// One trace per role, over the rows in which a GPU has that role or had it; `null` where it had another.
function traces(data, list) {
  const x = Array.from({ length: data.columns }, (_, index) => wall(data.start + (index + 0.5) * data.step));
  const blank = new Array(data.columns).fill(null);
  const cells = list.map((gpu) => (gpu ? data.cells(gpu.uuid) : null));
  const names = list.map((gpu) => new Array(data.columns).fill(gpu?.name ?? ""));
  return GROUPS.map(([letter]) => {
    const has = (row) => row?.roles.includes(letter);
    const from = Math.max(0, cells.findIndex(has));
    const to = cells.findLastIndex(has) + 1;
    const shares = (row) => row.shares.map((share, index) => (share !== null && row.roles[index] === letter ? share * 100 : null));
    return {
      type: "heatmap",
      x,
      y: list.slice(from, to).map((_, index) => from + index),
      z: cells.slice(from, to).map((row) => (has(row) ? shares(row) : blank)),
      text: names.slice(from, to),
      visible: to > from,
      zmin: 0,
      zmax: 100,
      xgap: 0,
      ygap: 1,
      showscale: false,
      hoverongaps: false,
      colorscale: scale(`--heat-${letter}`),
      hovertemplate: "%{text}<br>%{x|%H:%M:%S} · %{z:.0f} %<extra></extra>",
    };
  });
}

function annotation({ letter, word, gpus, at }) {
  const size = ngettext("%(n)s GPU", "%(n)s GPUs", gpus.length, { n: number(gpus.length) });
  const tall = gpus.length >= 4;
  return {
    text: tall ? `${word}<br>${size}` : `${word} ${number(gpus.length)}`,
    font: { color: css({ p: "--prefill-ink", d: "--decode-ink", m: "--mixed-ink", s: "--spare-ink" }[letter]), size: 11 },
    align: "left",
    showarrow: false,
    x: 0,
    xref: "paper",
    xanchor: "left",
    xshift: -EDGES.l,
    y: at - 0.5,
    yanchor: "top",
  };
}

function layout(data, list, labels, height) {
  const base = template();
  const axis = { showgrid: false, zeroline: false, fixedrange: true, showline: false };
  return {
    ...base,
    height,
    margin: EDGES,
    xaxis: { ...base.xaxis, showline: false, range: [wall(data.start), wall(data.end * data.step)], nticks: 6, tickformat: "%H:%M", ticks: "" },
    yaxis: { ...axis, autorange: false, range: [list.length - 0.5, -0.5], showticklabels: false, ticks: "" },
    annotations: labels.map(annotation),
  };
}

export function makeHeat(panel, rows, clock) {
  const plot = panel.querySelector("[data-plot]");
  const meta = panel.querySelector("[data-meta]");
  let data = null;
  let range = RANGES[0];
  let lib = null;
  let drawnAt = 0;
  let visible = false;
  let empty = false; // the plot says that there is nothing to draw
  let asked = false; // nothing is loaded before the panel is seen

  function failed(error) {
    data = null;
    const again = el("button", { class: "btn small", type: "button" }, gettext("Try again"));
    again.addEventListener("click", load);
    plot.replaceChildren(
      el(
        "div",
        { class: "failed", role: "alert" },
        el("span", { class: "say bad wrap" }, gettext("Could not load the GPUs' history: %(error)s", { error: error.message })),
        el("span", { class: "meta" }, clockSeconds(clock())),
        again,
      ),
    );
  }

  async function history(wanted) {
    const answer = await fetch(`${panel.dataset.history}?span_s=${wanted.span}&step_s=${wanted.step}`);
    if (answer.status === 401) throw new Error(gettext("your session has ended"));
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    return answer.json();
  }

  async function load() {
    const wanted = range;
    data = null;
    asked = true;
    try {
      const [loaded, found] = await Promise.all([history(wanted), plotly(panel.dataset.plotly)]);
      if (wanted !== range) return;
      lib = found;
      data = new HeatData(wanted.step, wanted.span / wanted.step);
      data.load(loaded, clock());
      plot.replaceChildren();
      empty = false;
      take();
      draw();
    } catch (error) {
      if (wanted === range) failed(error);
    }
  }

  function take() {
    for (const engine of rows.of("engine")) data.add(engine, clock());
  }

  function draw() {
    if (!data || !visible || document.hidden) return;
    drawnAt = Date.now();
    const { list, labels } = rowsOf(groupsOf(rows, data.uuids));
    const gpus = labels.reduce((sum, group) => sum + group.gpus.length, 0);
    if (gpus === 0) return drawNothing();
    if (empty) plot.replaceChildren();
    empty = false;
    const parts = [ngettext("%(n)s GPU", "%(n)s GPUs", gpus, { n: number(gpus) }), range.word, range.cell];
    text(meta, parts.join(" · "));
    meta.title = gettext("Busy share: the larger of tensor-core and memory-bandwidth activity. Blank: no role, or no data.");
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", gettext("Busy share of %(n)s GPUs over the last %(range)s", { n: number(gpus), range: range.word }));
    const row = Math.min(ROW_PX[1], Math.max(ROW_PX[0], MOST_PX / Math.max(1, list.length)));
    const height = Math.round(row * list.length) + EDGES.t + EDGES.b;
    lib.react(plot, traces(data, list), layout(data, list, labels, Math.max(80, height)), CONFIG);
  }

  function drawNothing() {
    if (empty) return;
    empty = true;
    lib.purge(plot);
    text(meta, "");
    plot.removeAttribute("role");
    plot.removeAttribute("aria-label");
    const words = gettext("A row for each GPU will stand here as soon as an engine holds it.");
    plot.replaceChildren(el("div", { class: "empty" }, el("b", {}, gettext("No GPU at work yet")), el("span", {}, words)));
  }

  function choose(next) {
    range = next;
    load();
  }

  function rangeSwitch() {
    const options = RANGES.map((option) => {
      const input = el("input", { type: "radio", name: "heat-range", checked: option === range });
      input.addEventListener("change", () => choose(option));
      return el("label", {}, input, el("span", {}, option.word));
    });
    return el("fieldset", { class: "seg" }, el("legend", { class: "sr" }, gettext("Time range")), ...options);
  }

  const head = panel.querySelector(".heat-key");
  head.prepend(rangeSwitch());
  head.append(takeAway(gettext("GPU activity"), () => `/data/fleet/heat?span_s=${range.span}&step_s=${range.step}`));
  new IntersectionObserver(([entry]) => {
    visible = entry.isIntersecting;
    if (!visible) return;
    if (asked) draw();
    else load();
  }).observe(panel);
  document.addEventListener("visibilitychange", draw);
  addEventListener("themechange", draw);
  addEventListener("zonechange", draw);

  return {
    // Called after a frame was applied: takes the samples, and draws at most every few seconds.
    frame() {
      if (!data) return;
      take();
      if (Date.now() - drawnAt >= DRAW_EVERY_MS) draw();
    },
  };
}
