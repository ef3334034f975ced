// How many alerts fire, in the bar of every page.
import { attr } from "./dom.js";
import { ngettext } from "./i18n.js";
import { announce } from "./say.js";

export const ALERTS = "alerts";
const place = document.querySelector(".nav [data-alerts]");

// row: the topic's AlertsRow; undefined before the first frame.
export function paintBadge(row) {
  if (!place || !row) return;
  const before = Number(place.dataset.count ?? 0);
  attr(place, "data-count", row.firing || null);
  attr(place, "data-critical", row.critical > 0);
  if (row.firing > before) announce(ngettext("%(n)s alert fires", "%(n)s alerts fire", row.firing));
}
