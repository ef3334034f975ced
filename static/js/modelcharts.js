// The charts of a model's page: which question to telemetry each is drawn from, its lines, and what its header says.
import { lastOf, layoutOf, linesOf, makeChart } from "./chart.js";
import { byteRate, latencyText, MISSING, number, percent, rate, significant } from "./format.js";
import { gettext } from "./i18n.js";
import { css, plain, scale, wall } from "./plotly.js";
import { roleWord } from "./opwords.js";
import { takeAway } from "./takeaway.js";
import { logTicks } from "./ticks.js";

const ROLES = [
  ["prefill", "p", "--prefill"],
  ["decode", "d", "--decode"],
  ["mixed", "m", "--mixed"],
];
const share = (value) => (value == null ? MISSING : `${percent(value)} %`);
const count = (value) => (value == null ? MISSING : value < 10 ? significant(value) : number(value));
const perSecond = (value) => (value == null ? MISSING : gettext("%(n)s req/s", { n: value > 0 && value < 0.1 ? significant(value) : rate(value) }));
const gpus = (value) => (value == null ? MISSING : value > 0 && value < 1 ? significant(value) : number(value, 1));
const bytes = (value) => {
  const { value: shown, unit } = byteRate(value);
  return unit ? `${shown} ${unit}` : shown;
};

// p50 faint, p99 in ink; of what clients saw against the model's SLO.
const percentiles = (name, limit) => ({
  lines: [
    { key: `${name}_p50`, words: "p50", color: "--ink-3", mark: "x2" },
    { key: `${name}_p99`, words: "p99", color: "--ink", mark: "" },
  ],
  show: latencyText,
  limit,
});

// One line per role of `figure`, of those that the model has had. `only`: roles that it says something of.
const byRole = (figure, show, { only = null, most, words = (role) => roleWord(role), dash } = {}) =>
  ROLES.filter(([role]) => !only || only.includes(role)).map(([role, mark, color]) => ({ key: `${role}_${figure}`, words: words(role), color, mark, show, most, dash }));

const bound = (figure, roles, words) => byRole(figure, share, { only: roles, words: (role) => gettext("%(role)s, %(what)s", { role: roleWord(role), what: words }) });

function headerOf(spec) {
  return (found) => spec.lines.filter(({ key }) => found.lines[key]?.values.some((value) => value != null)).map(({ key, words, mark }) => [mark, `${words} ${spec.show(lastOf(found.lines[key]))}`]);
}

// Transfers over time on log buckets, brighter = more, with the p99 line on top.
function transferHeat({ lines, heat }, state) {
  const low = Math.log10(heat.edges_ms[0]);
  const high = Math.log10(heat.edges_ms.at(-1));
  const used = heat.edges_ms.slice(1).map((_, bucket) => heat.counts.some((counts) => counts?.[bucket]));
  if (!used.includes(true)) return null;
  const from = Math.max(0, used.indexOf(true) - 2);
  const to = Math.min(used.length, used.lastIndexOf(true) + 3);
  const edges = heat.edges_ms.slice(from, to + 1).map(Math.log10);
  const x = heat.counts.map((_, index) => wall(heat.start + (index + 0.5) * heat.step_s));
  const columns = heat.counts.map((counts) => counts?.slice(from, to) ?? null);
  const most = Math.max(...columns.flatMap((counts) => counts ?? [0]));
  const z = Array.from({ length: to - from }, (_, bucket) => columns.map((counts) => (counts?.[bucket] ? Math.sqrt(counts[bucket] / most) : null)));
  const p99 = lines.transfer_p99.values;
  const ticks = logTicks(10 ** Math.max(low, edges[0]), 10 ** Math.min(high, edges.at(-1)));
  return {
    traces: [
      { type: "heatmap", x, y: edges.slice(1).map((edge, index) => (edge + edges[index]) / 2), z, zmin: 0, zmax: 1, showscale: false, colorscale: scale("--heat-x"), hoverinfo: "skip", hoverongaps: false, xgap: 0.1, ygap: 0.1 }, // with gaps Plotly draws cells, without it an image in an inline style
      { type: "scatter", mode: "lines", name: "p99", x, y: p99.map((value) => (value == null ? null : Math.log10(Math.max(value, 1)))), text: p99.map(latencyText), hovertemplate: "%{text}", connectgaps: false, line: { color: css("--ink"), width: 1.2 } },
    ],
    layout: layoutOf(state, { range: [edges[0], edges.at(-1)], rangemode: "normal", showgrid: false, tickvals: ticks.map(Math.log10), ticktext: ticks.map((tick) => plain(latencyText(tick))) }),
  };
}

const failures = { key: "failed", words: gettext("failed"), color: "--bad", mark: "b" };

// name: of the model; slo: {ttft_ms, itl_ms}; url(what) of its data. {source, chart} in page order.
export function makeCharts(slo, url) {
  const lines = (id, title, source, spec, meta = "") => ({ id, title, source, meta, draw: ({ lines: found }, state) => linesOf(spec, found, state), header: headerOf(spec) });
  const specs = [
    lines("chart-ttft", gettext("Time to first token"), "series", percentiles("ttft", slo.ttft_ms)),
    lines("chart-itl", gettext("Inter-token latency"), "series", percentiles("itl", slo.itl_ms)),
    {
      id: "chart-transfer",
      title: gettext("KV transfer latency"),
      source: "transfer_series",
      meta: gettext("brighter = more"),
      draw: transferHeat,
      header: ({ lines: found }) => [["x2", `p50 ${latencyText(lastOf(found.transfer_p50))}`], ["", `p99 ${latencyText(lastOf(found.transfer_p99))}`]],
    },
    lines("chart-bytes", gettext("KV moved"), "transfer_series", { lines: [{ key: "bytes_per_s", words: gettext("by the clock"), color: "--ink", mark: "" }], show: bytes }),
    lines("chart-queue", gettext("Queue depth"), "pool_series", { lines: byRole("waiting", count), show: count }, gettext("requests waiting")),
    lines("chart-requests", gettext("Request rate"), "series", { lines: [{ key: "requests_per_s", words: gettext("finished"), color: "--ink", mark: "" }], show: perSecond }),
    lines(
      "chart-use",
      gettext("Utilization"),
      "pool_series",
      { lines: [...bound("tensor", ["prefill", "mixed"], gettext("tensor")), ...bound("dram", ["decode"], gettext("memory bw"))], show: share, most: 1 },
    ),
    lines("chart-effective", gettext("Effective GPUs"), "pool_series", { lines: byRole("effective", gpus), show: gpus }),
    lines("chart-kv", gettext("KV cache in use"), "pool_series", { lines: byRole("kv_usage", share), show: share, most: 1 }),
    lines("chart-hits", gettext("Prefix hits"), "pool_series", { lines: byRole("prefix_hits", share), show: share, most: 1 }, gettext("of tokens asked for")),
    lines("chart-failed", gettext("Failed requests"), "series", { lines: [failures], show: count }, gettext("per cell")),
    lines(
      "chart-lost",
      gettext("Transfers failed, leases expired"),
      "transfer_series",
      { lines: [{ ...failures, words: gettext("failed") }, { key: "leases_expired", words: gettext("expired"), color: "--ink-2", mark: "x2", dash: "dot" }], show: count },
      gettext("per cell"),
    ),
  ];
  return specs.map((spec) => ({ source: spec.source, chart: makeChart({ ...spec, tools: [takeAway(spec.title, () => url(spec.id === "chart-transfer" ? "transfer_heat" : spec.source))] }) }));
}
