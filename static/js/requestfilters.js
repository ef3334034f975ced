// The filters of the requests page: the address holds them, controls change them, and what has no control is a tag to take off.
import { el, redraw } from "./dom.js";
import { latencyText, MISSING } from "./format.js";
import { gettext } from "./i18n.js";
import { reasonSentence } from "./reasons.js";
import { outcomeWord } from "./requestrow.js";

const PATHS = { monolithic: gettext("whole"), disaggregated: gettext("split"), none: gettext("refused by the router") };
const SELECTS = [
  ["model", gettext("Model"), (value) => value],
  ["outcome", gettext("Outcome"), outcomeWord],
  ["reason", gettext("Reason"), (value) => value],
  ["path", gettext("Route"), (value) => PATHS[value] ?? value],
  ["team", gettext("Team of the key"), (value) => value],
];
const TAGS = { prefill: gettext("prefill"), decode: gettext("decode"), session: gettext("session"), arm: gettext("arm"), max_ttft_ms: gettext("TTFT at most, ms"), min_total_ms: gettext("total from, ms") };
const LATE = ["500", "1000", "2000", "5000", "10000"];
const NAMES = [...SELECTS.map(([name]) => name), ...Object.keys(TAGS), "engine", "id", "slow", "retried", "min_ttft_ms"];

// choices: of the closed lists; engines: [id, label, role, model]. changed() after each choice; the address is already new.
export function makeFilters(form, choices, engines, changed) {
  const query = () => new URLSearchParams(location.search);
  const controls = new Map();
  const tags = el("span", { class: "tags" });
  const clear = el("button", { class: "btn small", type: "button" }, gettext("Show all"));

  function put(name, value) {
    const url = new URL(location.href);
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
    go(url);
  }
  function go(url) {
    for (const name of ["cursor", "open"]) url.searchParams.delete(name);
    history.pushState(null, "", url);
    paint();
    changed();
  }

  const field = (words, control) => el("label", { class: "field" }, words, control);
  function select(name, words, options) {
    const control = el("select", { name, class: "pick" }, el("option", { value: "" }, gettext("any")), ...options.map(([value, shown, title]) => el("option", { value, title }, shown)));
    control.addEventListener("change", () => put(name, control.value));
    controls.set(name, control);
    return field(words, control);
  }
  function check(name, words) {
    const control = el("input", { type: "checkbox", name });
    control.addEventListener("change", () => put(name, control.checked ? "1" : ""));
    controls.set(name, control);
    return el("label", { class: "check" }, control, words);
  }
  const id = el("input", { type: "search", name: "id", maxlength: 256, size: 12, autocomplete: "off", spellcheck: "false" });
  controls.set("id", id);
  form.append(
    ...SELECTS.map(([name, words, show]) => select(name, words, choices[name].map((value) => [value, show(value), name === "reason" ? reasonSentence(value) : null]))),
    select("engine", gettext("Engine"), engines.map(([value, label, , model]) => [value, `${label} · ${model}`])),
    select("min_ttft_ms", gettext("TTFT"), LATE.map((ms) => [ms, gettext("%(time)s or more", { time: latencyText(Number(ms)) })])),
    field(gettext("Id begins with"), el("span", { class: "in" }, id)),
    check("slow", gettext("over SLO")),
    check("retried", gettext("asked again")),
    tags,
    clear,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    put("id", id.value.trim());
  });
  id.addEventListener("search", () => put("id", id.value.trim()));
  clear.addEventListener("click", () => {
    const url = new URL(location.href);
    for (const name of NAMES) url.searchParams.delete(name);
    go(url);
  });

  // A value that is no choice (an engine that is gone, a model) is shown all the same: nothing is filtered unseen.
  function show(control, value) {
    if (control.type === "checkbox") control.checked = value === "1";
    else {
      if (control.tagName === "SELECT" && value && ![...control.options].some((option) => option.value === value)) control.append(el("option", { value }, value));
      if (control !== document.activeElement || control.value === "") control.value = value;
    }
  }

  function tag(name, value) {
    const label = engines.find(([engine]) => engine === value)?.[1] ?? value;
    const off = el("button", { type: "button", "aria-label": gettext("Take off %(filter)s", { filter: TAGS[name] }) }, "✕");
    off.addEventListener("click", () => put(name, ""));
    return el("span", { class: "tag" }, TAGS[name], " ", el("b", {}, label || MISSING), off);
  }

  function paint() {
    const now = query();
    for (const [name, control] of controls) show(control, now.get(name) ?? "");
    const worn = Object.keys(TAGS).filter((name) => now.get(name));
    redraw(tags, JSON.stringify(worn.map((name) => [name, now.get(name)])), () => worn.map((name) => tag(name, now.get(name))));
    clear.hidden = !NAMES.some((name) => now.get(name));
  }

  addEventListener("popstate", paint);
  paint();
  return {
    focus: () => controls.get("model").focus(),
    // Of the address, for the data's.
    write(target) {
      for (const [name, value] of query()) if (NAMES.includes(name) && value) target.append(name, value);
    },
  };
}
