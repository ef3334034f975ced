// Two small buttons that take a table away: as CSV and as JSON, with units, as the page's data address gives it.
import { el } from "./dom.js";
import { gettext } from "./i18n.js";

// `what`: the table's name in words; `url`: of its data, a query may follow.
export function exportButtons(what, url) {
  const link = (format, words) => el("a", { class: "btn small quiet", href: `${url}${url.includes("?") ? "&" : "?"}format=${format}`, download: "", title: gettext("Take away %(what)s as %(format)s", { what, format: words }) }, words);
  return [el("span", { class: "take" }, el("span", { class: "meta" }, what), link("csv", "CSV"), link("json", "JSON"))];
}
