// What every page has: theme, keys, help, the viewer's menu.
import { key } from "./keys.js";
import { nextTheme } from "./theme.js";

const help = document.getElementById("help");
const showHelp = () => help.open || help.showModal();

key("t", nextTheme);
key("?", showHelp);
key("g f", () => location.assign("/"));
key("g o", () => location.assign("/operations"));
for (const button of document.querySelectorAll("[data-help]")) button.addEventListener("click", showHelp);

const menu = document.querySelector("details.menu");
document.addEventListener("click", (event) => {
  if (menu.open && !menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && menu.open) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
});
