// What every page has: theme, keys, search, help, the viewer's menu.
import { el } from "./dom.js";
import { key } from "./keys.js";
import { nextTheme } from "./theme.js";
import "./zone.js";

const help = document.getElementById("help");
const showHelp = () => help.open || help.showModal();
const find = document.querySelector("[data-find]");

key("t", nextTheme);
key("?", showHelp);
key("/", () => {
  find.focus();
  find.select();
});
for (const button of document.querySelectorAll("[data-help]")) button.addEventListener("click", showHelp);

// Each place in the bar names its second key after `g`: one list for the bar, the keys and the help.
const places = document.querySelector("[data-places]");
for (const place of document.querySelectorAll(".nav [data-go]")) {
  key(`g ${place.dataset.go}`, () => location.assign(place.href));
  places.append(el("dt", {}, el("kbd", {}, "g"), " ", el("kbd", {}, place.dataset.go)), el("dd", {}, place.textContent));
}

find.addEventListener("keydown", (event) => event.key === "Escape" && find.blur());
find.form.addEventListener("submit", (event) => {
  if (find.value.trim()) return;
  event.preventDefault();
  find.focus();
});

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
