// How many alerts fire and how many proposals wait for a decision, in the bar of every page.
import { attr } from "./dom.js";
import { ngettext } from "./i18n.js";
import { announce } from "./say.js";

export const ALERTS = "alerts";
const place = document.querySelector(".nav [data-alerts]");
const proposals = document.querySelector(".nav [data-proposals]");

// row: the topic's AlertsRow; undefined before the first frame.
export function paintBadge(row) {
  if (!place || !row) return;
  const before = Number(place.dataset.count ?? 0);
  attr(place, "data-count", row.firing || null);
  attr(place, "data-critical", row.critical > 0);
  if (row.firing > before) announce(ngettext("%(n)s alert fires", "%(n)s alerts fire", row.firing));
}

// row: the topic's ProposalsRow; undefined where nobody told it.
export function paintAsked(row) {
  if (!proposals || !row) return;
  const before = Number(proposals.dataset.count ?? 0);
  attr(proposals, "data-count", row.asked || null);
  if (row.asked > before) announce(ngettext("%(n)s proposal waits for a decision", "%(n)s proposals wait for a decision", row.asked));
}
