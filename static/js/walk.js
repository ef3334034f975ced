// j and k move a choice through the things of a page, Enter opens the chosen one.
import { attr } from "./dom.js";
import { key } from "./keys.js";

// `selector`: what is moved through, in page order (rows of tables, panels). open(node): Enter; the first link by itself.
export function walk(selector, open = (node) => node.querySelector("a[href]")?.click()) {
  let chosen = null;
  const mark = (node, on) => attr(node, node.matches("tr") ? "aria-selected" : "data-chosen", on ? "true" : null);

  function choose(node) {
    if (chosen) mark(chosen, false);
    chosen = node;
    mark(node, true);
    node.scrollIntoView({ block: "nearest" });
  }

  function move(by) {
    const all = [...document.querySelectorAll(selector)].filter((node) => !node.hidden);
    const at = all.indexOf(chosen);
    const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
    if (next) choose(next);
  }

  key("j", () => move(1));
  key("k", () => move(-1));
  key("Enter", () => chosen?.isConnected && open(chosen));
  document.addEventListener("click", (event) => {
    const node = event.target.closest?.(selector);
    if (node && !event.target.closest("a, button, input, summary, select")) choose(node);
  });
  return { chosen: () => (chosen?.isConnected ? chosen : null), choose };
}
