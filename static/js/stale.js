// The banner of a page that was old: what was done to the model since it was drawn.
import { refusal } from "./dialog.js";
import { el, hide, redraw } from "./dom.js";
import { gettext } from "./i18n.js";

export function makeStale(banners, closed) {
  const node = el("div", { class: "banner warn", id: "stale", role: "alert" });
  const close = el("button", { class: "btn small", type: "button" }, gettext("I have seen it"));
  banners.after(node);
  hide(node, true);
  const shut = () => {
    hide(node, true);
    closed();
  };
  close.addEventListener("click", shut);
  return {
    hide: () => hide(node, true),
    show(document) {
      const words = gettext("This page was old: %(model)s has changed since it was drawn. It now shows the model as it is.", { model: document.model.name });
      redraw(node, JSON.stringify(document.since), () => [el("span", { class: "say warn wrap" }, words), el("span", { class: "end" }, close), refusal({ since: document.since })]);
      hide(node, false);
    },
  };
}
