// Theme: dark -> light -> system. Kept in a cookie, so that the server sends the page in it, and in localStorage for other tabs.
import { gettext } from "./i18n.js";

const ORDER = ["dark", "light", "system"];
const YEAR_S = 365 * 24 * 3600;
const root = document.documentElement;
const words = { dark: gettext("dark"), light: gettext("light"), system: gettext("system") };
let chosen = root.dataset.theme ?? "system";

function apply(theme) {
  chosen = theme;
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  for (const label of document.querySelectorAll("[data-theme-label]")) label.textContent = words[theme];
  dispatchEvent(new Event("themechange"));
}

export function nextTheme() {
  apply(ORDER[(ORDER.indexOf(chosen) + 1) % ORDER.length]);
  document.cookie = `theme=${chosen}; path=/; max-age=${YEAR_S}; samesite=lax`;
  try {
    localStorage.setItem("theme", chosen);
  } catch {
    // storage may be forbidden; the cookie suffices
  }
}

addEventListener("storage", (event) => event.key === "theme" && ORDER.includes(event.newValue) && apply(event.newValue));
matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => chosen === "system" && dispatchEvent(new Event("themechange")));
for (const button of document.querySelectorAll("[data-theme-toggle]")) button.addEventListener("click", nextTheme);
apply(chosen);
