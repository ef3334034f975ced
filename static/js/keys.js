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

const typing = (target) => target.closest?.("input:not([type=radio],[type=checkbox]), textarea, select, [contenteditable]");

document.addEventListener("keydown", (event) => {
  if (!on || event.ctrlKey || event.metaKey || event.altKey || event.repeat || typing(event.target)) return;
  const act = actions.get(event.key);
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
