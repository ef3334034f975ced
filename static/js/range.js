// The time range of a page: in the address, so that a link shows the same. A span up to now, or from one moment to another.
import { now } from "./clock.js";
import { el, hide, text } from "./dom.js";
import { clock, date } from "./format.js";
import { gettext } from "./i18n.js";
import { isUtc, toggleZone, zoneName } from "./zone.js";

export const SPANS = { "15m": 900, "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800, "30d": 2592000, "90d": 7776000 };
const WORDS = {
  "15m": gettext("15 min"),
  "1h": gettext("1 h"),
  "6h": gettext("6 h"),
  "24h": gettext("24 h"),
  "7d": gettext("7 d"),
  "30d": gettext("30 d"),
  "90d": gettext("90 d"),
};

const iso = (seconds) => `${new Date(seconds * 1000).toISOString().slice(0, 19)}Z`;

// Of <input type="datetime-local">, in the zone that the page shows.
function fromInput(value) {
  const at = new Date(isUtc() ? `${value}Z` : value).getTime() / 1000;
  return Number.isFinite(at) ? at : null;
}
function toInput(seconds) {
  const date = new Date(seconds * 1000);
  return new Date(date.getTime() - (isUtc() ? 0 : date.getTimezoneOffset() * 60000)).toISOString().slice(0, 16);
}

// In a bar beside it: spans to choose, a dialog for two moments. changed() after every choice, and after Back.
export function makeRange(place, { fallback = "1h", spans = Object.keys(SPANS), changed }) {
  let chosen = read();

  function read() {
    const query = new URLSearchParams(location.search);
    const [from, to] = ["from", "to"].map((name) => Date.parse(query.get(name) ?? "") / 1000);
    if (Number.isFinite(from)) return { from, to: Number.isFinite(to) ? to : null };
    const name = query.get("range");
    return { name: spans.includes(name) ? name : fallback };
  }

  // Puts the choice into an address's query.
  function write(query) {
    for (const name of ["range", "from", "to"]) query.delete(name);
    if (chosen.name) {
      if (chosen.name !== fallback) query.set("range", chosen.name);
    } else {
      query.set("from", iso(chosen.from));
      if (chosen.to !== null) query.set("to", iso(chosen.to));
    }
  }

  function choose(next) {
    chosen = next;
    const url = new URL(location.href);
    write(url.searchParams);
    url.searchParams.delete("cursor");
    history.pushState(null, "", url);
    paint();
    changed();
  }

  const options = spans.map((name) => {
    const input = el("input", { type: "radio", name: "range", value: name });
    input.addEventListener("change", () => choose({ name }));
    return { name, input, node: el("label", {}, input, el("span", {}, WORDS[name])) };
  });
  const own = el("button", { class: "btn small", type: "button" }, gettext("Other…"));
  const told = el("span", { class: "meta" });
  const zone = el("button", { class: "btn quiet small", type: "button", title: gettext("Change between your own zone and UTC") });
  zone.addEventListener("click", toggleZone);
  const bar = el("fieldset", { class: "seg" }, el("legend", { class: "sr" }, gettext("Time range")), ...options.map(({ node }) => node));
  place.append(bar, own, told, zone);
  own.addEventListener("click", ask);

  function ask() {
    const moment = (value) => el("input", { type: "datetime-local", value: toInput(value), max: toInput(now()), required: true });
    const { from, to } = { from: chosen.from ?? now() - SPANS[chosen.name], to: chosen.to ?? now() };
    const [begin, end] = [moment(from), moment(to)];
    const field = (words, input) => el("label", { class: "field" }, words, el("span", { class: "in" }, input));
    const said = el("p", { class: "say bad", role: "alert" });
    const close = el("button", { class: "btn", type: "button" }, gettext("Close"), " ", el("kbd", {}, "Esc"));
    const form = el("form", { class: "body stack" }, field(gettext("From"), begin), field(gettext("To"), end), said, el("div", { class: "ask-end" }, close, el("button", { class: "btn primary" }, gettext("Show"))));
    const dialog = el("dialog", { class: "panel help", "aria-labelledby": "range-title" }, el("header", {}, el("h2", { id: "range-title" }, gettext("Time range")), el("span", { class: "meta" }, zoneName())), form);
    hide(said, true);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const [since, until] = [fromInput(begin.value), fromInput(end.value)];
      const wrong = since === null || until === null || since >= until;
      hide(said, !wrong);
      text(said, gettext("The end must be later than the beginning."));
      if (wrong) return;
      dialog.close();
      choose({ from: since, to: until });
    });
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  function paint() {
    for (const { name, input } of options) input.checked = name === chosen.name;
    text(told, chosen.name ? "" : `${date(chosen.from)} ${clock(chosen.from)} – ${chosen.to === null ? gettext("now") : `${date(chosen.to)} ${clock(chosen.to)}`}`);
    text(zone, gettext("times in %(zone)s", { zone: zoneName() }));
  }
  addEventListener("zonechange", paint);
  addEventListener("popstate", () => {
    chosen = read();
    paint();
    changed();
  });
  paint();

  return {
    // Whether it reaches to the present and moves with it.
    get live() {
      return Boolean(chosen.name) || chosen.to === null;
    },
    get span() {
      return chosen.name ? SPANS[chosen.name] : (chosen.to ?? now()) - chosen.from;
    },
    get words() {
      return chosen.name ? WORDS[chosen.name] : told.textContent;
    },
    // For an address of data, or of another page.
    write,
    query() {
      const query = new URLSearchParams();
      write(query);
      if (chosen.name) query.set("range", chosen.name);
      return query;
    },
  };
}
