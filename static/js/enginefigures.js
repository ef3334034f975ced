// Figures and charts of one engine. Load is live; latencies, tokens and memory are of the last 15 minutes.
import { el, figure, redraw, text } from "./dom.js";
import { mean, STALE_S } from "./engines.js";
import { byteRate, gibibytes, latency, latencyText, MISSING, number, percent, rate } from "./format.js";
import { gettext } from "./i18n.js";
import { lineChart } from "./linechart.js";
import { limitMeter, meter } from "./meters.js";
import { emptied } from "./panels.js";
import { now } from "./clock.js";

const cells = new WeakMap();

function makeCell(list, name, span) {
  const big = figure("span", "big");
  const second = figure("span", "second");
  const bar = el("dd", { class: "meter" });
  const foot = el("dd", { class: "foot" });
  second.set("");
  list.append(el("div", { class: "kpi" }, el("dt", {}, name, el("span", { class: "meta" }, span)), el("dd", { class: "line" }, big.node, second.node), bar, foot));
  return { big, second, bar, foot };
}

function makeCells(list, role) {
  const quarter = gettext("15 min");
  return {
    role,
    load: makeCell(list, gettext("Requests in it"), gettext("now")),
    kv: makeCell(list, gettext("KV cache"), gettext("now")),
    busy: makeCell(list, gettext("GPUs busy"), gettext("now")),
    tokens: makeCell(list, gettext("Tokens"), quarter),
    ttft: makeCell(list, gettext("Time to first token"), quarter),
    last: makeCell(list, role === "prefill" ? gettext("Queue time") : gettext("Inter-token latency"), quarter),
  };
}

function pair(cell, found, limit, words) {
  const [high, middle] = [latency(found?.p99.value), latency(found?.p50.value)];
  cell.big.set(high.value, high.unit && `${high.unit} p99`);
  cell.second.set(found?.p50.value == null ? "" : middle.value, middle.unit && `${middle.unit} p50`);
  limitMeter(cell.bar, found?.p99.value ?? null, limit);
  text(cell.foot, found?.p99.value == null ? gettext("none in 15 min") : words);
}

// row: live; figures: of telemetry, one per role that it had, or null; gpus: their figures, or null.
export function paintKpis(list, row, figures, gpus, facts) {
  if (cells.get(list)?.role !== row.role) list.replaceChildren();
  if (!list.firstChild) cells.set(list, makeCells(list, row.role));
  const at = cells.get(list);
  const own = (figures ?? []).find((each) => each.role === row.role) ?? figures?.[0] ?? null;
  const fresh = row.sampled_at != null && now() - row.sampled_at <= STALE_S;
  at.load.big.set(row.running == null ? MISSING : number(row.running), gettext("running"));
  at.load.second.set(row.waiting == null ? "" : number(row.waiting), row.waiting == null ? "" : gettext("waiting"));
  text(at.load.foot, own?.waiting_max.value == null ? "" : gettext("longest queue %(n)s in 15 min", { n: number(own.waiting_max.value) }));
  meter(at.load.bar, [{ className: "fill-x2", value: row.running ?? 0 }], Math.max(1, facts.launch.args.max_num_seqs ?? 256));
  at.kv.big.set(percent(row.kv_usage), row.kv_usage == null ? "" : "%");
  text(at.kv.foot, own?.kv_usage_max.value == null ? "" : gettext("most %(n)s % in 15 min", { n: percent(own.kv_usage_max.value) }));
  meter(at.kv.bar, [{ className: "fill-x2", value: row.kv_usage ?? 0 }], 1);
  const shares = row.gpu_uuids.map((_, index) => (row.tensor[index] == null && row.dram[index] == null ? null : Math.max(row.tensor[index] ?? 0, row.dram[index] ?? 0)));
  at.busy.big.set(fresh ? percent(mean(shares)) : MISSING, fresh ? "%" : "");
  meter(at.busy.bar, [{ className: "fill-x2", value: fresh ? (mean(shares) ?? 0) : 0 }], 1);
  const memory = (gpus ?? []).map((gpu) => gpu.memory_used_bytes.value).filter((value) => value != null);
  const power = (gpus ?? []).map((gpu) => gpu.power_w.value).filter((value) => value != null);
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  text(at.busy.foot, [memory.length && `${gibibytes(sum(memory))} GiB`, power.length && `${number(sum(power))} W`].filter(Boolean).join(" · ") || gettext("memory and power are not told"));
  const made = row.role === "prefill" ? own?.prompt_tokens_per_s.value : own?.output_tokens_per_s.value;
  at.tokens.big.set(rate(made), row.role === "prefill" ? gettext("prompt tok/s") : gettext("tok/s"));
  const moved = byteRate(own?.transfer_bytes_per_s.value);
  text(at.tokens.foot, [own?.prefix_hits.value != null && gettext("%(n)s % from its prefix cache", { n: percent(own.prefix_hits.value) }), own?.transfer.p99.value != null && gettext("KV %(rate)s, p99 %(p99)s", { rate: `${moved.value} ${moved.unit}`, p99: latencyText(own.transfer.p99.value) })].filter(Boolean).join(" · "));
  meter(at.tokens.bar, [], 1);
  pair(at.ttft, own?.ttft, row.role === "mixed" ? facts.slo.ttft_ms : null, row.role === "mixed" ? gettext("SLO %(limit)s", { limit: latencyText(facts.slo.ttft_ms) }) : gettext("to its own first token"));
  if (row.role === "prefill") pair(at.last, own?.queue, null, gettext("before its first step"));
  else pair(at.last, own?.itl, facts.slo.itl_ms, gettext("SLO %(limit)s", { limit: latencyText(facts.slo.itl_ms) }));
}

const values = (lines, name) => lines[name]?.values ?? [];

// The charts of 30 minutes, two abreast. series: {lines} of /data/engines/<id>/series.
export function drawCharts(body, { lines }, row, facts) {
  const some = Object.values(lines).find((line) => line.values.some((value) => value != null));
  const one = lines.running;
  if (!some || !one) {
    redraw(body, "none", () => [emptied(gettext("No samples in this time"), gettext("Load, KV cache, tokens and latencies stand here once its agent has sampled it."))]);
    return;
  }
  const [from, to] = [one.start, one.start + one.step_s * one.values.length];
  const chart = (title, shown, more) => lineChart({ title, lines: shown, from, to, height: 128, ...more });
  const decode = row.role !== "prefill";
  const name = decode ? "itl" : "ttft";
  redraw(body, JSON.stringify(lines), () => [
    el(
      "div",
      { class: "pairs" },
      chart(gettext("Requests"), [{ words: gettext("running"), className: "x", values: values(lines, "running") }, { words: gettext("waiting"), className: "x2", values: values(lines, "waiting") }], { show: (value) => number(value, 1), least: 1 }),
      chart(gettext("KV cache"), [{ className: "x", values: values(lines, "kv_usage") }], { show: (value) => `${percent(value)} %`, least: 0.5 }),
      chart(decode ? gettext("Tokens out") : gettext("Tokens in"), [{ className: "x", values: values(lines, decode ? "output_tokens_per_s" : "prompt_tokens_per_s") }], { show: (value) => `${rate(value)} tok/s`, least: 1 }),
      chart(decode ? gettext("Inter-token latency") : gettext("Time to its first token"), [{ words: "p99", className: "x", values: values(lines, `${name}_p99`) }, { words: "p50", className: "x2", values: values(lines, `${name}_p50`) }], {
        show: latencyText,
        least: 1,
        limit: decode ? { value: facts.slo.itl_ms, words: gettext("SLO %(limit)s", { limit: latencyText(facts.slo.itl_ms) }) } : null,
      }),
      ...(values(lines, "transfer_p99").some((value) => value != null) ? [chart(gettext("KV transfer"), [{ words: "p99", className: "x", values: values(lines, "transfer_p99") }, { words: "p50", className: "x2", values: values(lines, "transfer_p50") }], { show: latencyText, least: 1 })] : []),
      ...(values(lines, "queue_p99").some((value) => value != null) ? [chart(gettext("Queue"), [{ words: "p99", className: "x", values: values(lines, "queue_p99") }, { words: "p50", className: "x2", values: values(lines, "queue_p50") }], { show: latencyText, least: 1 })] : []),
    ),
  ]);
}
