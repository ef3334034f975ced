// The form of a model's planner: fields of what is set, and what of them was changed. Times of spans are UTC.
import { el, hide } from "./dom.js";
import { number } from "./format.js";
import { gettext } from "./i18n.js";
import { field } from "./dialog.js";
import { MODES, roleWord } from "./opwords.js";
import { LEVELS } from "./proposalwords.js";

const DEGREES = [1, 2, 4, 8, 16];
const LEVEL_HELP = {
  off: gettext("Nothing is planned for this model."),
  advise: gettext("Proposals are shown as long as they hold; nobody is asked."),
  approve: gettext("Somebody approves, modifies or rejects each proposal; else it expires."),
  automatic: gettext("The planner carries its proposals out by itself, within the limits below."),
};
const GUARDS = {
  cooldown_s: [gettext("Cool-down"), gettext("s"), gettext("After the last change of the model, by whomever.")],
  manual_s: [gettext("A person's change is kept"), gettext("s"), gettext("At least so long, unless a target is missed.")],
  moves_per_hour: [gettext("Moves an hour"), gettext("engines"), gettext("Engines that change role, start or stop.")],
  lifetime_s: [gettext("A proposal is void after"), gettext("s"), gettext("When nobody has decided on it.")],
  hysteresis: [gettext("Must be better by"), "0 – 0.9", gettext("Share of cost or strain that a change must gain if no target needs it.")],
  headroom: [gettext("Headroom"), "0 – 2", gettext("Added to the predicted load when engines are sized.")],
  horizon_s: [gettext("Looks ahead"), gettext("s"), gettext("An engine must be up by then.")],
  idle_s: [gettext("Low load before GPUs are given up"), gettext("s"), gettext("Load must have been low for so long.")],
  stale_s: [gettext("Metrics are stale after"), gettext("s"), gettext("Older ones hold the planner.")],
  min_samples: [gettext("Requests to judge by"), gettext("requests"), gettext("With fewer in its window the load is not judged.")],
};

const group = (title, hint, ...nodes) => el("fieldset", { class: "set-group" }, el("legend", {}, title), ...(hint ? [el("p", { class: "hint" }, hint)] : []), ...nodes);
const helped = (label, input, unit, help) => el("label", { class: "field" }, label, el("span", { class: "in" }, input, unit && el("span", { class: "unit" }, unit)), help && el("span", { class: "hint" }, help));
const ticks = (name, label, options, chosen, words) => el("div", { class: "field" }, el("span", {}, label), el("span", { class: "ticks", role: "group", "aria-label": label }, ...options.map((value) => el("label", {}, el("input", { type: "checkbox", name, value, checked: chosen.includes(value) }), words(value)))));
const pad = (value) => String(value).padStart(2, "0");

// ---- spans: of every day (times of the UTC day) or once (moments, UTC)
const dayText = (seconds) => `${pad(Math.floor(seconds / 3600) % 24)}:${pad(Math.floor(seconds / 60) % 60)}`;
const momentText = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 16);
const daySeconds = (text) => {
  const [hours, minutes] = text.split(":").map(Number);
  return 3600 * hours + 60 * minutes;
};
const momentSeconds = (text) => Date.parse(`${text}Z`) / 1000;

function spanRow(span, isPeak, changed) {
  const daily = el("select", { name: "daily" }, el("option", { value: "true", selected: span.daily }, gettext("every day")), el("option", { value: "", selected: !span.daily }, gettext("once")));
  const since = el("input", { name: "since", required: true });
  const until = el("input", { name: "until", required: true });
  const load = el("input", { name: "rate", type: "number", min: 0.001, step: "any", required: true, value: span.rate ?? "" });
  const why = el("input", { name: "why", type: "text", maxlength: 200, value: span.why ?? "" });
  const remove = el("button", { class: "btn small", type: "button", "aria-label": gettext("Remove this time") }, "✕");
  const retype = () => {
    for (const input of [since, until]) input.type = daily.value ? "time" : "datetime-local";
  };
  retype();
  if (span.since_s != null) {
    since.value = span.daily ? dayText(span.since_s) : momentText(span.since_s);
    until.value = span.daily ? dayText(span.until_s) : momentText(span.until_s);
  }
  daily.addEventListener("change", retype);
  const node = el("div", { class: isPeak ? "span-row peak" : "span-row" }, field(gettext("From (UTC)"), since), field(gettext("to"), until), field(gettext("When"), daily), ...(isPeak ? [field(gettext("At least"), load, gettext("req/s"))] : []), field(gettext("Why"), why), remove);
  if (!isPeak) node.children[2].after(el("span"));
  remove.addEventListener("click", () => {
    node.remove();
    changed();
  });
  return {
    node,
    value: () => {
      const seconds = daily.value ? daySeconds : momentSeconds;
      return { since_s: seconds(since.value), until_s: seconds(until.value), daily: Boolean(daily.value), why: why.value.trim(), ...(isPeak ? { rate: Number(load.value) } : {}) };
    },
  };
}

function spanList(title, hint, spans, isPeak, most, changed) {
  const rows = [];
  const place = el("div", { class: "set-group" });
  const add = el("button", { class: "btn small", type: "button" }, gettext("Add a time"));
  const show = (span) => {
    const row = spanRow(span, isPeak, changed);
    rows.push(row);
    place.append(row.node);
    hide(add, rows.filter((each) => each.node.isConnected).length >= most);
  };
  spans.forEach(show);
  add.addEventListener("click", () => {
    show({ daily: true });
    changed();
  });
  return { node: group(title, hint, place, el("div", { class: "save-row" }, add)), value: () => rows.filter((row) => place.contains(row.node)).map((row) => row.value()) };
}

// planner: what is set; choices: of the page. {nodes, changes()}: parts that differ from what is set, ready to be sent.
export function makeForm({ planner, choices, model }, { priorityRefused, changed }) {
  const roles = [...new Set(["prefill", "decode", "mixed"].filter((role) => model.pools.some((pool) => pool.role === role) || planner.floors[role] || planner.ceilings[role]))];
  const level = el("div", { class: "levels", role: "radiogroup", "aria-label": gettext("Level") }, ...choices.level.map((value) => el("label", {}, el("input", { type: "radio", name: "level", value, checked: value === planner.level }), el("b", {}, LEVELS[value]), el("span", { class: "hint" }, LEVEL_HELP[value]))));
  const priority = el("input", { type: "number", name: "priority", step: 1, min: -choices.priority, max: choices.priority, value: planner.priority, disabled: Boolean(priorityRefused), title: priorityRefused || null });
  const modes = ticks("modes", gettext("Modes that may be proposed"), Object.keys(MODES), planner.modes, (value) => MODES[value]);
  const whole = (name, value) => el("input", { type: "number", name, min: 1, max: 4096, step: 1, value: value ?? "" });
  const pools = roles.map((role) => {
    const own = model.pools.find((pool) => pool.role === role);
    const floor = whole(`floor-${role}`, planner.floors[role]);
    const ceiling = whole(`ceiling-${role}`, planner.ceilings[role]);
    floor.placeholder = number(Math.max(1, own?.floor ?? 1));
    ceiling.placeholder = gettext("none");
    const degrees = [...new Set([...DEGREES, ...(planner.degrees[role] ?? [])])].sort((a, b) => a - b);
    const node = group(gettext("Pool %(role)s", { role: roleWord(role) }), "", helped(gettext("Floor"), floor, gettext("engines"), gettext("A plan leaves at least so many.")), helped(gettext("Ceiling"), ceiling, gettext("engines"), gettext("A plan makes at most so many.")), ticks(`degrees-${role}`, gettext("Tensor-parallel degrees besides its own"), degrees, planner.degrees[role] ?? [], (value) => `TP${value}`), ticks(`kinds-${role}`, gettext("GPU kinds besides its own"), choices.kinds, planner.kinds[role] ?? [], (value) => value));
    const ticked = (name) => [...node.querySelectorAll(`[name="${name}-${role}"]:checked`)].map((input) => input.value);
    return { role, node, floor, ceiling, kinds: () => ticked("kinds"), degrees: () => ticked("degrees").map(Number) };
  });
  const guards = Object.entries(GUARDS).map(([name, [words, unit, help]]) => {
    const [low, high] = choices.ranges[name];
    const input = el("input", { type: "number", name, min: low, max: high, step: "any", value: planner.guards[name] ?? "", placeholder: number(choices.defaults[name], Number.isInteger(choices.defaults[name]) ? 0 : 2) });
    return { name, input, node: helped(words, input, unit, help) };
  });
  const giveUp = el("input", { type: "checkbox", name: "give_up", checked: planner.guards.give_up ?? choices.defaults.give_up });
  const slots = spanList(gettext("Change windows"), gettext("Changes are made in these times alone; with none, at any time."), planner.guards.slots ?? [], false, choices.spans, changed);
  const freezes = spanList(gettext("Freezes"), gettext("Nothing is changed in these times."), planner.guards.freezes ?? [], false, choices.spans, changed);
  const peaks = spanList(gettext("Known peaks"), gettext("A load that is known to come: engines are up before it."), planner.peaks, true, choices.spans, changed);

  const given = (input) => (input.value === "" ? undefined : Number(input.value));
  const byRole = (of) => Object.fromEntries(pools.map((pool) => [pool.role, of(pool)]).filter(([, value]) => (Array.isArray(value) ? value.length : value !== undefined)));
  const others = (part) => Object.fromEntries(Object.entries(planner[part]).filter(([role]) => !roles.includes(role)));

  function wanted() {
    return {
      level: level.querySelector("input:checked").value,
      priority: Number(priority.value),
      modes: [...modes.querySelectorAll("input:checked")].map((input) => input.value),
      floors: { ...others("floors"), ...byRole((pool) => given(pool.floor)) },
      ceilings: { ...others("ceilings"), ...byRole((pool) => given(pool.ceiling)) },
      kinds: { ...others("kinds"), ...byRole((pool) => pool.kinds()) },
      degrees: { ...others("degrees"), ...byRole((pool) => pool.degrees()) },
      peaks: peaks.value(),
    };
  }

  // By name, null for the default again; only those that are another.
  function guardChanges() {
    const now = Object.fromEntries(guards.map(({ name, input }) => [name, given(input)]));
    now.give_up = giveUp.checked === choices.defaults.give_up ? undefined : giveUp.checked;
    for (const [name, list] of [["slots", slots], ["freezes", freezes]]) now[name] = list.value().length ? list.value() : undefined;
    const found = Object.entries(now).filter(([name, value]) => !same(value, planner.guards[name]));
    return Object.fromEntries(found.map(([name, value]) => [name, value ?? null]));
  }

  function changes() {
    const found = Object.fromEntries(Object.entries(wanted()).filter(([part, value]) => !same(value, planner[part])));
    const changedGuards = guardChanges();
    return Object.keys(changedGuards).length ? { ...found, guards: changedGuards } : found;
  }

  const nodes = [
    group(gettext("Level"), "", level),
    group(gettext("Between models"), gettext("A model that misses its targets may take GPUs from models of a lower priority, above their floors. Priorities are an operator's."), helped(gettext("Priority"), priority, "", gettext("More is more important.")), modes),
    ...pools.map((pool) => pool.node),
    group(gettext("Limits"), gettext("An empty field has the default that stands in it."), ...guards.map((guard) => guard.node), el("label", { class: "check" }, giveUp, gettext("GPUs that are not needed are given up; else only their split and the mode change"))),
    slots.node,
    freezes.node,
    peaks.node,
  ];
  return { nodes, changes };
}

// Whatever the order of keys and of ticked things; the present mode and such are not looked at.
function same(a, b) {
  const plain = (value) => (value === null || value === undefined ? "" : JSON.stringify(sorted(value)));
  return plain(a) === plain(b);
}

function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted).sort((a, b) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).filter(([name, each]) => !(name === "why" && each === "")).sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, each]) => [name, sorted(each)]));
}

export const partWords = {
  level: gettext("level"),
  priority: gettext("priority"),
  modes: gettext("modes"),
  floors: gettext("floors"),
  ceilings: gettext("ceilings"),
  kinds: gettext("GPU kinds"),
  degrees: gettext("degrees"),
  guards: gettext("limits and times"),
  peaks: gettext("known peaks"),
};
