// Nodes: what is wrong with them or their numbers (banners) and which of their GPUs nobody uses (spare tiles).
import { attr, el, hide, keyed, svg, text } from "./dom.js";
import { indices, number, span } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { bars } from "./meters.js";

const SPARE_STATE = {
  ok: ["idle", gettext("spare")],
  silent: ["warn", gettext("silent")],
  lost: ["bad", gettext("lost")],
};

function makeSpare() {
  const name = el("b");
  const place = el("span", { class: "node" });
  const chart = svg("svg", { class: "bars", viewBox: "0 0 44 26", "aria-hidden": "true" });
  const size = el("span", { class: "dim" });
  const kind = el("span");
  const state = el("span");
  const tile = el("div", { class: "tile spare" }, el("span", { class: "id" }, name, place, state), chart, el("span", { class: "vals" }, size, kind));
  return {
    node: el("li", {}, tile),
    paint(row) {
      text(name, row.name);
      text(place, indices(row.spare));
      const [kindOfState, word] = SPARE_STATE[row.state] ?? SPARE_STATE.silent;
      attr(state, "class", `st say ${kindOfState}`);
      text(state, word);
      attr(tile, "title", gettext("GPUs %(list)s of %(node)s: no engine holds them", { list: indices(row.spare), node: row.name }));
      bars(chart, "fill-s", row.spare.map(() => 0));
      text(size, ngettext("%(n)s GPU", "%(n)s GPUs", row.spare.length, { n: number(row.spare.length) }));
      text(kind, row.gpu_kind);
    },
  };
}

export function makeSpares(panel) {
  const tiles = panel.querySelector("[data-tiles]");
  const meta = panel.querySelector("[data-meta]");
  return (nodes) => {
    const spare = nodes.filter((row) => row.spare.length > 0);
    const sizeOf = (list) => list.reduce((sum, row) => sum + row.spare.length, 0);
    const total = sizeOf(spare.filter((row) => row.state === "ok"));
    const out = sizeOf(spare) - total;
    hide(panel, spare.length === 0);
    const parts = [ngettext("%(n)s GPU no engine holds", "%(n)s GPUs no engine holds", total, { n: number(total) })];
    if (out) parts.push(gettext("%(n)s stale left out", { n: number(out) }));
    text(meta, parts.join(" · "));
    keyed(tiles, spare, (row) => row.id, makeSpare);
  };
}

function makeProblem(clock) {
  const what = el("span");
  const so = el("span", { class: "soft" });
  const node = el("div", { class: "banner warn" }, what, so);
  return {
    node,
    paint(row) {
      const lost = row.state === "lost";
      attr(node, "class", lost ? "banner bad" : "banner warn");
      attr(what, "class", lost ? "say bad" : "say warn");
      const params = { node: row.name, age: row.sampled_at == null ? "—" : span(clock() - row.sampled_at) };
      text(
        what,
        row.sampled_at == null
          ? gettext("Node %(node)s has not reported yet", params)
          : lost
            ? gettext("Node %(node)s is lost: nothing from it for %(age)s", params)
            : gettext("Node %(node)s has not reported for %(age)s", params),
      );
      text(
        so,
        ngettext(
          "Its %(n)s GPU is shown as stale and takes no part in totals.",
          "Its %(n)s GPUs are shown as stale and take no part in totals.",
          row.gpus,
          { n: number(row.gpus) },
        ),
      );
    },
  };
}

// Numbers made of what came are too low while records are lost; the page must not hide that.
function makeGaps() {
  const what = el("span", { class: "say warn" });
  const so = el("span", { class: "soft" }, gettext("Numbers may be lower than what happened."));
  return {
    node: el("div", { class: "banner warn" }, what, so),
    paint({ gaps }) {
      const lost = ngettext("%(n)s telemetry record was lost in 5 min", "%(n)s telemetry records were lost in 5 min", gaps, { n: number(gaps) });
      text(what, lost);
    },
  };
}

export function makeProblems(place, clock) {
  return (nodes, fleet) => {
    const wrong = nodes.filter((row) => row.state !== "ok");
    if (fleet?.gaps) wrong.push({ id: "gaps", gaps: fleet.gaps });
    keyed(place, wrong, (row) => row.id, (row) => (row.gaps ? makeGaps() : makeProblem(clock)));
    return wrong.length;
  };
}
