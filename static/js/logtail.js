// The end of an engine's log, followed while it is seen: asked of the node's agent through the control plane, every few
// seconds, and only what changed is sent. Lines are text, whatever they hold.
import { attr, el, hide, text } from "./dom.js";
import { clockSeconds, number } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { now } from "./clock.js";
import { failed } from "./panels.js";
import { read } from "./act.js";

const EVERY_MS = 2000;
const AFTER_FAILURE_MS = 10_000;
const SIZES = [100, 200, 500];
const AT_END_PX = 24;
const HOT = /\b(ERROR|CRITICAL|FATAL|Traceback)\b/;
const WARM = /\bWARN(ING)?\b/;

const lineClass = (line) => (HOT.test(line) ? "log-bad" : WARM.test(line) ? "log-warn" : "");

// `panel` has data-body, data-meta and data-end. refused: why this viewer may not read it, or "". ranks: [{index, node}].
export function makeLog(panel, { engine, refused, ranks }) {
  const [body, meta, end] = ["body", "meta", "end"].map((name) => panel.querySelector(`[data-${name}]`));
  const list = el("pre", { class: "log", tabindex: "0", role: "group", "aria-label": gettext("Log of %(engine)s", { engine }) });
  const problem = el("div");
  const follow = el("input", { type: "checkbox", checked: true });
  const size = el("select", { class: "pick", "aria-label": gettext("Lines") }, ...SIZES.map((lines) => el("option", { value: lines, selected: lines === 200 }, ngettext("%(n)s line", "%(n)s lines", lines))));
  const place = el("select", { class: "pick", "aria-label": gettext("Rank") }, ...ranks.map((rank) => el("option", { value: rank.index }, gettext("rank %(n)s on %(node)s", { n: rank.index, node: rank.node }))));
  let stamp = "";
  let asking = false;
  let nextAt = 0;
  let visible = false;

  if (refused) {
    body.replaceChildren(el("div", { class: "empty" }, el("b", {}, gettext("Not for your role")), el("span", {}, refused)));
    return { frame() {}, focus() {} };
  }
  body.replaceChildren(problem, list);
  hide(place, ranks.length < 2);
  end.append(place, size, el("label", { class: "check" }, follow, gettext("follow")));

  const atEnd = () => list.scrollHeight - list.scrollTop - list.clientHeight < AT_END_PX;

  function show({ lines, incarnation, node }) {
    const stay = !follow.checked && !atEnd();
    const top = list.scrollTop;
    list.replaceChildren(...lines.flatMap((line) => [el("span", { class: lineClass(line) }, line), "\n"]));
    if (!lines.length) list.replaceChildren(el("span", { class: "dim" }, gettext("(nothing written yet)")));
    list.scrollTop = stay ? top : list.scrollHeight;
    const told = ngettext("%(n)s line", "%(n)s lines", lines.length, { n: number(lines.length) });
    text(meta, gettext("start %(n)s on %(node)s · %(lines)s · %(time)s", { n: incarnation, node, lines: told, time: clockSeconds(now()) }));
  }

  async function ask() {
    asking = true;
    const query = new URLSearchParams({ lines: size.value, rank: place.value || "0", seen: stamp });
    const { ok, status, document: told } = await read(`/engines/${encodeURIComponent(engine)}/log?${query}`);
    asking = false;
    nextAt = Date.now() + (ok ? EVERY_MS : AFTER_FAILURE_MS);
    attr(panel, "data-state", ok ? "shown" : "failed");
    if (!ok) {
      const again = el("button", { class: "btn small", type: "button" }, gettext("Try again"));
      again.addEventListener("click", ask);
      problem.replaceChildren(failed(gettext("The log cannot be had: %(error)s", { error: told.error ?? told.reasons?.[0] ?? status }), again));
      hide(list, !stamp);
      return;
    }
    problem.replaceChildren();
    hide(list, false);
    if (told.same) return;
    stamp = told.stamp;
    show(told);
  }

  function frame(down = false) {
    if (visible && !down && !asking && !document.hidden && Date.now() >= nextAt && (follow.checked || !stamp)) ask();
  }

  function anew() {
    stamp = "";
    nextAt = 0;
    frame();
  }

  for (const choice of [size, place]) choice.addEventListener("change", anew);
  follow.addEventListener("change", () => frame());
  // Who scrolls up reads: new lines must not pull the text away.
  list.addEventListener("scroll", () => {
    if (follow.checked && !atEnd()) follow.checked = false;
  });
  new IntersectionObserver(([entry]) => {
    visible = entry.isIntersecting;
    frame();
  }).observe(panel);
  return { frame, focus: () => list.focus(), anew };
}
