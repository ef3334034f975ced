// The switch between a model's modes. A click asks; the switch itself goes on showing what is desired.
import { attr, el, hide, text } from "./dom.js";
import { gettext } from "./i18n.js";
import { MODES } from "./opwords.js";

// ask(row, mode): one was clicked, perhaps the one it has. paint(row) of the model's live row.
export function makeMode(ask) {
  const options = Object.entries(MODES).map(([mode, word]) => ({ mode, input: el("input", { type: "radio", value: mode }), word }));
  const legend = el("legend", { class: "sr" });
  const labels = options.map(({ input, word }) => el("label", {}, input, el("span", {}, word)));
  const node = el("fieldset", { class: "seg" }, legend, ...labels);
  const note = el("a", { class: "say run" });
  let row = null;
  const restore = () => {
    for (const { mode, input } of options) if (input.checked !== (mode === row.mode)) input.checked = mode === row.mode;
  };
  for (const { mode, input } of options) {
    // `click` comes for the chosen one too: its thresholds can be changed.
    input.addEventListener("click", (event) => {
      event.preventDefault();
      ask(row, mode);
    });
    input.addEventListener("keydown", (event) => {
      if (["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key)) {
        event.preventDefault();
        const next = options[(options.findIndex((one) => one.input === input) + (/Left|Up/.test(event.key) ? options.length - 1 : 1)) % options.length];
        next.input.focus();
      } else if (event.key === " " || event.key === "Enter") {
        event.preventDefault();
        ask(row, mode);
      }
    });
  }
  return {
    node,
    note,
    paint(next) {
      row = next;
      text(legend, gettext("Mode of %(model)s", { model: row.name }));
      attr(node, "title", gettext("Asks before it changes anything"));
      for (const { mode, input } of options) attr(input, "name", `mode ${row.name}`);
      restore();
      hide(note, row.served_mode === row.mode);
      text(note, gettext("still served %(mode)s", { mode: (MODES[row.served_mode] ?? row.served_mode).toLowerCase() }));
    },
  };
}
