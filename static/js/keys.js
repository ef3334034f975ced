// Single keys. Off while typing, with a modifier, and for viewers who switched them off (WCAG 2.1.4).
const actions = new Map();
const stored = () => {
  try {
    return localStorage.getItem("keys") !== "off";
  } catch {
    return true;
  }
};
let on = stored();

export function key(name, act) {
  actions.set(name, act);
}

// "g f": a key that only leads the next one.
const leads = (name) => [...actions.keys()].some((known) => known.startsWith(`${name} `));
let led = "";

const OPENS = "a, button, summary, select, input"; // what Enter presses by itself
const typing = (target) => target.closest?.("input:not([type=radio],[type=checkbox]), textarea, select, [contenteditable]");

document.addEventListener("keydown", (event) => {
  if (!on || event.ctrlKey || event.metaKey || event.altKey || event.repeat || typing(event.target)) return;
  if (document.querySelector("dialog[open]") || (event.key === "Enter" && event.target.closest?.(OPENS))) return;
  const act = actions.get(led + event.key) ?? actions.get(event.key);
  led = !led && leads(event.key) ? `${event.key} ` : "";
  if (!act) return;
  event.preventDefault();
  act();
});

for (const box of document.querySelectorAll("[data-keys-on]")) {
  box.checked = on;
  box.addEventListener("change", () => {
    on = box.checked;
    try {
      localStorage.setItem("keys", on ? "on" : "off");
    } catch {
      // forbidden storage: the choice lasts as long as the page
    }
  });
}
