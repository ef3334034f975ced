// Two latencies while an operation ran: a line each, the SLO, and a dotted line where a step began.
import { read } from "./act.js";
import { el } from "./dom.js";
import { latencyText } from "./format.js";
import { gettext } from "./i18n.js";
import { lineChart } from "./linechart.js";
import { stepVerb } from "./opwords.js";
import { emptied, failed } from "./panels.js";

function chart(title, values, limit, starts, steps) {
  return lineChart({
    title,
    lines: [{ className: "x", values }],
    from: starts[0],
    to: starts.at(-1),
    limit: { value: limit, words: gettext("SLO %(limit)s", { limit: latencyText(limit) }) },
    marks: steps.map((step) => ({ at: step.started_at, words: stepVerb(step.verb).toLowerCase() })),
    show: latencyText,
  });
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
