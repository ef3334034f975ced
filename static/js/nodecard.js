// One node: how it is, what may be done with it, and a tile per GPU with its activity, memory and power.
import { gate } from "./act.js";
import { attr, el, hide, keyed, redraw, svg, text } from "./dom.js";
import { busy, ROLE, STALE_S } from "./engines.js";
import { gibibytes, number, percent, span } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { bars } from "./meters.js";
import { say } from "./say.js";

const STATE = { ok: ["", ""], silent: ["warn", gettext("silent")], lost: ["bad", gettext("lost")] };

// The GPUs of a row, one object each.
export const gpusOf = (row) =>
  (row?.uuids ?? []).map((uuid, at) => ({
    uuid,
    index: row.indices[at],
    kind: row.kinds[at],
    engine: row.engines[at],
    label: row.labels[at],
    model: row.models[at],
    role: row.roles[at],
    tensor: row.tensor[at],
    dram: row.dram[at],
    busy: busy(row.tensor[at], row.dram[at]),
    used: row.memory_used_bytes[at],
    memory: row.memory_bytes[at],
    power: row.power_w[at],
  }));

function makeGpu(gpu) {
  const index = el("span", { class: "node" });
  const label = el("b");
  const model = el("span", { class: "st" });
  const chart = svg("svg", { class: "bars", viewBox: "0 0 44 26", "aria-hidden": "true" });
  const value = el("b", { class: "num" });
  const note = el("span");
  const body = el(gpu.engine ? "a" : "div", {}, el("span", { class: "id" }, label, index, model), chart, el("span", { class: "vals" }, value, note));
  return {
    node: el("li", {}, body),
    paint(now) {
      const role = ROLE[now.role];
      attr(body, "class", `tile ${role ? role.letter : "spare"}`);
      if (now.engine) attr(body, "href", `/engines/${encodeURIComponent(now.engine)}`);
      attr(body, "title", [`GPU ${now.index}`, now.kind, now.uuid, now.engine, gettext("tensor %(n)s %", { n: percent(now.tensor) }), gettext("memory bandwidth %(n)s %", { n: percent(now.dram) })].filter(Boolean).join(" · "));
      text(label, now.label || gettext("spare"));
      text(index, `GPU ${now.index}`);
      text(model, now.model);
      bars(chart, role?.fill ?? "fill-s", [now.tensor, now.dram]);
      redraw(value, percent(now.busy), () => [percent(now.busy), el("small", {}, gettext("% busy"))]);
      text(note, `${gibibytes(now.used)}/${gibibytes(now.memory)} GiB${now.power == null ? "" : ` · ${number(now.power)} W`}`);
    },
  };
}

function factsText(row, facts, gpus) {
  const kinds = [...new Set(gpus.map((gpu) => gpu.kind))].join(", ");
  const labels = Object.entries(facts?.labels ?? {}).map(([name, value]) => `${name}=${value}`);
  const host = row.cpu == null ? "" : gettext("CPU %(n)s %", { n: percent(row.cpu) });
  const memory = row.memory_used_bytes == null ? "" : gettext("memory %(used)s / %(all)s GiB", { used: gibibytes(row.memory_used_bytes), all: gibibytes(row.memory_total_bytes) });
  const size = `${ngettext("%(n)s GPU", "%(n)s GPUs", gpus.length, { n: number(gpus.length) })} ${kinds}`.trim();
  const network = facts?.network_gbps ? `${number(facts.network_gbps)} Gb/s` : "";
  return [size, facts?.address, network, host, memory, ...labels].filter(Boolean).join(" · ");
}

// ask(row): opens the dialog that cordons the node, or ends that.
export function makeNodeCard(clock, ask) {
  const title = el("h2");
  const state = el("span");
  const cordoned = el("span", { class: "badge warn" }, gettext("cordoned"));
  const stale = el("span", { class: "stale-note" });
  const meta = el("span", { class: "meta" });
  const heard = el("span", { class: "meta" });
  const button = el("button", { class: "btn small", type: "button" });
  const tiles = el("ul", { class: "tiles gpus" });
  const none = el("p", { class: "none" }, gettext("No GPU yet: its agent has not told of any."));
  const node = el("section", { class: "panel node-card", tabindex: "-1" }, el("header", {}, title, state, cordoned, stale, meta, el("span", { class: "end" }, heard, button)), el("div", { class: "body" }, tiles, none));
  let latest = null;
  button.addEventListener("click", () => ask(latest.row));
  return {
    node,
    ask: () => button.disabled || ask(latest.row),
    paint(item) {
      latest = item;
      const { row, facts, refused } = item;
      const gpus = gpusOf(item.gpus);
      const age = row.sampled_at == null ? null : clock() - row.sampled_at;
      const [kind, word] = STATE[row.state] ?? STATE.silent;
      attr(node, "data-node", row.name);
      attr(node, "id", row.name);
      attr(node, "class", age !== null && age > STALE_S ? "panel node-card is-stale" : "panel node-card");
      text(title, row.name);
      say(state, kind, row.sampled_at == null && row.state === "silent" ? gettext("has not reported yet") : word);
      hide(state, !kind);
      hide(cordoned, !row.cordoned);
      text(stale, age === null ? "" : gettext("▲ stale since %(age)s", { age: span(age) }));
      text(meta, factsText(row, facts, gpus));
      text(heard, row.heard_at == null ? gettext("agent not heard yet") : gettext("agent heard %(age)s ago", { age: span(clock() - row.heard_at) }));
      text(button, row.cordoned ? gettext("Uncordon") : gettext("Cordon"));
      gate(button, refused[row.cordoned ? "uncordon_node" : "cordon_node"] ?? "", row.cordoned ? gettext("Give it new engines again") : gettext("Give it no new engines; those it has serve on"));
      keyed(tiles, gpus, (gpu) => `${gpu.uuid} ${Boolean(gpu.engine)}`, makeGpu);
      hide(tiles, gpus.length === 0);
      hide(none, gpus.length > 0);
    },
  };
}
