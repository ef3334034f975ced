// Status as glyph + word (class `say` gives the glyph), and the one polite voice of the page.
import { attr, text } from "./dom.js";

export function say(node, kind, words) {
  attr(node, "class", `say ${kind}`);
  text(node, words);
}

let voice = null;

// Speaks a change that matters to a screen reader; never ticking numbers.
export function announce(words) {
  voice ??= document.getElementById("announce");
  voice.textContent = words;
}
