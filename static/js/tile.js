// One tile per engine; pressing it opens what can be done with the engine.
import { attr, el, redraw, svg, text } from "./dom.js";
import { barsOf, contents, details, ROLE, staleFor, stateOf } from "./engines.js";
import { indices, roughly } from "./format.js";
import { gettext } from "./i18n.js";
import { bars } from "./meters.js";

function figures(list) {
  return list.flatMap(([value, unit], index) => (index ? [" · ", value, el("small", {}, unit)] : [value, el("small", {}, unit)]));
}

// {node, paint(row)}; `clock()` is the server's time, `open(row)` what a press does.
export function makeTile(clock, open) {
  const label = el("b");
  const place = el("span", { class: "node" });
  const state = el("span", { class: "st" });
  const chart = svg("svg", { class: "bars", viewBox: "0 0 44 26", "aria-hidden": "true" });
  const value = el("b", { class: "num" });
  const note = el("span");
  const body = el("button", { type: "button" }, el("span", { class: "id" }, label, place, state), chart, el("span", { class: "vals" }, value, note));
  const node = el("li", {}, body);
  let latest = null;
  body.addEventListener("click", () => latest && open(latest));

  function paint(row) {
    latest = row;
    const now = clock();
    const role = ROLE[row.role] ?? ROLE.mixed;
    const [kind, word, tileClass] = stateOf(row);
    const stale = staleFor(row, now);
    const shown = contents(row, now);
    attr(node, "data-engine", row.engine);
    attr(body, "class", ["tile", role.letter, tileClass, stale === null ? "" : "is-stale"].filter(Boolean).join(" "));
    attr(body, "title", details(row, now));
    text(label, row.label);
    text(place, `${row.node} ${indices(row.gpu_indices)}`);
    attr(state, "class", stale === null ? (kind ? `st say ${kind}` : "st") : "st say warn");
    text(state, stale === null ? word : gettext("stale %(age)s", { age: roughly(stale) }));
    bars(chart, role.fill, barsOf(row));
    redraw(value, JSON.stringify([shown.figures, shown.words]), () =>
      shown.figures ? figures(shown.figures) : [el("span", { class: "dim" }, shown.words)],
    );
    attr(note, "class", shown.hot ? "hot" : "");
    text(note, shown.note);
  }

  return { node, paint };
}
