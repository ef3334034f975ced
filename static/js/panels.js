// A panel that fails says so in its place; the rest of the page lives on.
import { now } from "./clock.js";
import { el, redraw, text } from "./dom.js";
import { clockSeconds, span } from "./format.js";
import { gettext } from "./i18n.js";

export function guard(panel, paint) {
  return (...values) => {
    try {
      return paint(...values);
    } catch (error) {
      console.error(error);
      redraw(panel, `failed ${error.message}`, () => [failure(error)]);
      return undefined;
    }
  };
}

export function failure(error) {
  const again = el("button", { class: "btn small", type: "button" }, gettext("Load the page again"));
  again.addEventListener("click", () => location.reload());
  return failed(gettext("Could not show this part: %(error)s", { error: error.message }), again);
}

// The state "error" of the design: what went wrong, when, and the one thing to do about it.
export function failed(words, ...actions) {
  return el("div", { class: "failed", role: "alert" }, el("span", { class: "say bad wrap" }, words), el("span", { class: "meta" }, clockSeconds(now())), ...actions);
}

// The state "stale" of panels: their numbers stay, greyed, with how long ago the last ones came. since: Unix s, or null.
export function paintStale(panels, since) {
  for (const panel of panels) {
    panel.classList.toggle("is-stale", since !== null);
    let note = panel.querySelector(":scope > header > .stale-note");
    if (!note && since === null) continue;
    if (!note) {
      note = el("span", { class: "stale-note" });
      panel.querySelector(":scope > header > h2").after(note);
    }
    text(note, since === null ? "" : gettext("▲ stale since %(age)s", { age: span(now() - since) }));
  }
}

// The state "empty": what would be here, and why it is not.
export const emptied = (title, words) => el("div", { class: "empty" }, el("b", {}, title), el("span", {}, words));
