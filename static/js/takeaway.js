// A small menu in a panel's header that takes its table or chart away as CSV or JSON, over the time that the page shows.
import { attr, el, svg } from "./dom.js";
import { gettext } from "./i18n.js";

// url(): of the data now; a query may follow.
export function takeAway(what, url) {
  const link = (format, words) => ({ format, node: el("a", { class: "btn quiet small", download: "" }, words) });
  const links = [link("csv", "CSV"), link("json", "JSON")];
  const summary = el("summary", { class: "btn quiet small", title: gettext("Take away %(what)s", { what }), "aria-label": gettext("Take away %(what)s", { what }) }, svg("svg", { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" }, svg("path", { class: "ln x2", d: "M6 1v7M3 5l3 3 3-3M1 11h10" })));
  const node = el("details", { class: "menu takeaway" }, summary, el("div", { class: "menu-body" }, ...links.map((one) => one.node)));
  const close = () => (node.open = false);
  node.addEventListener("toggle", () => {
    const now = url();
    for (const { format, node: anchor } of links) attr(anchor, "href", `${now}${now.includes("?") ? "&" : "?"}format=${format}`);
  });
  for (const { node: anchor } of links) anchor.addEventListener("click", close);
  node.addEventListener("focusout", (event) => node.contains(event.relatedTarget) || close());
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !node.open) return;
    close();
    summary.focus();
  });
  return node;
}
