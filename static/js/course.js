// Two latencies while an operation ran: a line each, the SLO, and a dotted line where a step began.
import { read } from "./act.js";
import { el, svg } from "./dom.js";
import { clock, latencyText } from "./format.js";
import { gettext } from "./i18n.js";
import { brokenLine } from "./meters.js";
import { stepVerb } from "./opwords.js";
import { emptied, failed } from "./panels.js";

const WIDTH = 1000;
const HEIGHT = 168;
const TOP = 16;
const FLOOR = 150;
const EDGE = 0.92; // a name further right than this ends at its line
const NEAR = 0.07; // names of steps nearer than this share of the width are left out

function line(values, y) {
  const last = values.length - 1;
  return brokenLine(values, (index) => (last ? Math.round((10 * WIDTH * index) / last) / 10 : WIDTH), y, "h.1");
}

function chart(title, values, limit, starts, steps) {
  const known = values.filter((value) => value != null);
  const most = 1.15 * Math.max(limit, ...known);
  const y = (value) => Math.round(10 * (FLOOR - ((FLOOR - TOP) * value) / most)) / 10;
  const [from, to] = [starts[0], starts.at(-1)];
  const share = (at) => (to > from ? (at - from) / (to - from) : 1);
  const marks = [];
  let last = -1;
  for (const step of steps) {
    if (step.started_at == null || share(step.started_at) < 0 || share(step.started_at) > 1) continue;
    marks.push({ at: share(step.started_at), words: share(step.started_at) - last > NEAR ? stepVerb(step.verb).toLowerCase() : "" });
    if (marks.at(-1).words) last = marks.at(-1).at;
  }
  const frame = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", width: "100%", height: HEIGHT },
    svg("path", { class: "axis", d: `M0 ${FLOOR}H${WIDTH}` }),
    ...marks.map(({ at }) => svg("path", { class: "mark dot", d: `M${Math.round(WIDTH * at)} 12V${FLOOR}` })),
    svg("path", { class: "ln x", d: line(values, y) }),
    svg("path", { class: "slo", d: `M0 ${y(limit)}H${WIDTH}` }),
  );
  const words = (x, at, text, anchor, className = "") => svg("text", { class: className, x, y: at, "text-anchor": anchor }, text);
  const shown = known.length ? latencyText(known.at(-1)) : "—";
  return el(
    "div",
    {},
    el("h3", {}, title, " ", el("span", { class: "dim" }, shown)),
    svg(
      "svg",
      { class: "chart", height: HEIGHT, role: "img", "aria-label": `${title}: ${shown}` },
      frame,
      words(0, y(limit) - 4, gettext("SLO %(limit)s", { limit: latencyText(limit) }), "start", "lab"),
      ...marks.filter(({ words: name }) => name).map(({ at, words: name }) => words(`${Math.round(1000 * at) / 10}%`, 10, name, at > EDGE ? "end" : "middle", "lab")),
      words("0%", 164, clock(from), "start"),
      words("100%", 164, clock(to), "end"),
    ),
  );
}

// Draws into the panel's body. slo: {ttft_ms, itl_ms}.
export async function drawCourse(body, number, steps, slo) {
  const { ok, document } = await read(`/operations/${number}/history`);
  if (!ok) {
    const again = el("button", { class: "btn small", type: "button" }, gettext("Try again"));
    again.addEventListener("click", () => drawCourse(body, number, steps, slo));
    body.replaceChildren(failed(gettext("Could not load the latencies: %(error)s", { error: document.reasons?.[0] ?? document.error }), again));
    return;
  }
  if (![...document.ttft_p99, ...document.itl_p99].some((value) => value != null)) {
    body.replaceChildren(emptied(gettext("No requests in this time"), gettext("TTFT and ITL of the model stand here from a minute before the operation on.")));
    return;
  }
  const charts = [
    chart(gettext("TTFT p99"), document.ttft_p99, slo.ttft_ms, document.starts, steps),
    chart(gettext("ITL p99"), document.itl_p99, slo.itl_ms, document.starts, steps),
  ];
  body.replaceChildren(el("div", { class: "pairs" }, ...charts));
}
