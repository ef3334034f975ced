// The target split: a slider that moves engines between two pools, a stepper per pool, and one slot per engine.
import { attr, el, redraw, text } from "./dom.js";
import { number } from "./format.js";
import { gettext } from "./i18n.js";
import { labelAs, roleWord } from "./opwords.js";

const LETTER = { prefill: "p", decode: "d", mixed: "m" };
const MOST = 4096;

function makeStepper(role, step) {
  const less = el("button", { class: "btn", type: "button", "aria-label": gettext("One %(role)s engine less", { role: roleWord(role) }) }, "−");
  const more = el("button", { class: "btn", type: "button", "aria-label": gettext("One %(role)s engine more", { role: roleWord(role) }) }, "+");
  const value = el("output", { class: `${LETTER[role]}-ink`, "aria-label": roleWord(role) });
  less.addEventListener("click", () => step(role, -1));
  more.addEventListener("click", () => step(role, 1));
  return { node: el("div", { class: "stepper" }, less, value, more), less, more, value };
}

// Which engine ends where. `turning`: engine -> role it is given, as the plan says; before there is one, pools keep their own
// and the newest leave first.
export function arrange(engines, sizes, roles, turning) {
  const slots = Object.fromEntries(roles.map((role) => [role, []]));
  const turned = (engine, role) => ({ role, label: engine.label, to: labelAs(engine.label, role), turn: true });
  const leaving = [];
  for (const engine of engines) {
    const role = turning.get(engine.id);
    if (slots[role]) slots[role].push(turned(engine, role));
  }
  for (const role of roles) {
    const own = engines.filter((engine) => engine.role === role && !turning.has(engine.id));
    const kept = Math.max(0, Math.min(own.length, sizes[role] - slots[role].length));
    slots[role].unshift(...own.slice(0, kept).map((engine) => ({ role, label: engine.label })));
    leaving.push(...own.slice(kept));
  }
  for (const role of roles) {
    while (slots[role].length < sizes[role]) {
      const engine = leaving.find((one) => one.role !== role);
      if (engine) leaving.splice(leaving.indexOf(engine), 1);
      slots[role].push(engine ? turned(engine, role) : { role, label: "+", to: gettext("new"), turn: true });
    }
  }
  // Those that turn stand at the border between the pools.
  const [first, second = []] = roles.map((role) => slots[role]);
  const moved = (slot) => (slot.turn ? 1 : 0);
  first.sort((a, b) => moved(a) - moved(b));
  second.sort((a, b) => moved(b) - moved(a));
  return [...first, ...second, ...leaving.map((engine) => ({ role: "", label: engine.label, to: gettext("stops"), turn: true }))];
}

// `roles`: the pools of the mode, one or two. changed(sizes) for every choice of the viewer.
export function makeSplit(body, roles, changed) {
  let sizes = {};
  let locked = false;
  const steppers = Object.fromEntries(roles.map((role) => [role, makeStepper(role, step)]));
  const slider = el("input", { type: "range", "aria-label": gettext("Prefill engines") });
  const slots = el("ol", { class: "slots" });
  const note = el("p", { class: "meta" });
  const parts = roles.length === 2 ? [steppers[roles[0]].node, el("label", {}, el("span", { class: "sr" }, gettext("Prefill engines")), slider), steppers[roles[1]].node] : [steppers[roles[0]].node];
  const control = el("div", { class: roles.length === 2 ? "split" : "split one" }, ...parts);
  body.replaceChildren(control, slots, note);

  const total = () => roles.reduce((sum, role) => sum + sizes[role], 0);
  function choose(next) {
    if (locked) return;
    sizes = next;
    changed(next);
  }
  function step(role, by) {
    const n = sizes[role] + by;
    if (n >= 0 && n <= MOST) choose({ ...sizes, [role]: n });
  }
  slider.addEventListener("input", () => choose({ [roles[0]]: Number(slider.value), [roles[1]]: total() - Number(slider.value) }));
  // A slot left of the border goes over to decode together with those after it, one right of it to prefill with those before.
  slots.addEventListener("click", (event) => {
    const index = [...slots.children].indexOf(event.target.closest("li"));
    if (index < 0 || index >= total() || roles.length < 2) return;
    const first = index < sizes[roles[0]] ? index : index + 1;
    choose({ [roles[0]]: first, [roles[1]]: total() - first });
  });

  return {
    paint({ sizes: next, engines, turning, lock, why }) {
      sizes = next;
      locked = lock;
      for (const role of roles) {
        text(steppers[role].value, number(sizes[role]));
        for (const [button, stop] of [
          [steppers[role].less, sizes[role] === 0],
          [steppers[role].more, sizes[role] >= MOST],
        ]) {
          button.disabled = lock || stop;
          attr(button, "title", lock ? why : null);
        }
      }
      attr(slider, "min", 0);
      attr(slider, "max", total());
      slider.value = sizes[roles[0]];
      slider.disabled = lock;
      attr(slider, "aria-valuetext", roles.map((role) => `${roleWord(role)} ${sizes[role]}`).join(", "));
      attr(control, "aria-disabled", lock ? "true" : null);
      const shown = arrange(engines, sizes, roles, turning);
      attr(slots, "class", shown.some((slot) => slot.turn) ? "slots has-turns" : "slots");
      redraw(slots, JSON.stringify(shown), () =>
        shown.map((slot) => el("li", { class: [LETTER[slot.role] ?? "s", slot.turn ? "turn" : ""].join(" ").trim() }, slot.label, slot.to && el("small", {}, `→ ${slot.to}`))),
      );
      const difference = total() - engines.length;
      text(note, difference > 0 ? gettext("%(n)s more than there are: started on spare GPUs", { n: number(difference) }) : difference < 0 ? gettext("%(n)s fewer than there are: drained and stopped", { n: number(-difference) }) : "");
    },
  };
}
