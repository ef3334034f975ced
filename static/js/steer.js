// Pause, go on, cancel and roll back an operation: each asks for a reason first.
import { gate, order } from "./act.js";
import { ask, isOpen } from "./dialog.js";
import { el, hide, text } from "./dom.js";
import { gettext } from "./i18n.js";
import { changeOf, isOver, splitText, verbOf } from "./opwords.js";

const HELP = {
  pause: gettext("Nothing new is begun. What is on its way finishes, and what fails is still healed."),
  resume: gettext("It goes on where it was paused."),
  cancel: gettext("It ends where it is: what is there now becomes what is wanted. Nothing is moved back."),
  rollback: gettext("What was wanted before is wanted again; engines move back as they came, without losing requests."),
};

export function askToSteer(verb, operation, { title, confirm, done }) {
  ask({
    title,
    meta: gettext("operation %(n)s", { n: operation.number }),
    body: [el("p", { class: "soft" }, HELP[verb]), ...(operation.words ? [el("p", {}, operation.words)] : [])],
    confirm,
    danger: verb === "rollback" || verb === "cancel",
    send: (reason) => order(`/operations/${operation.number}/${verb}`, { reason }),
    done,
  });
}

// Whether it can be taken back, ended or not. `last`: number of the newest operation of its model, where that is known.
export const canUndo = (row, undoable) => row.state !== "rolling_back" && (!isOver(row) || (row.state === "done" && undoable.includes(row.verb)));

// What a roll-back would restore, in words: "→ prefill 5, decode 8".
export const backWords = ({ before, after }) => changeOf({ before: after, after: before });

// The buttons of a run bar. done(document) after each order that was taken.
export function makeSteering({ refused, undoable, done }) {
  const pause = el("button", { class: "btn", type: "button" });
  const cancel = el("button", { class: "btn", type: "button" }, gettext("Cancel"));
  const back = el("button", { class: "btn danger", type: "button" });
  let now = null;

  const act = (verb, title, confirm) => now && !isOpen() && askToSteer(verb, { number: now.row.number, words: verb === "rollback" ? backWords(now.facts) : "" }, { title, confirm, done });
  const pausing = () => (now?.row.state === "paused" ? "resume" : "pause");
  const pauseNow = () => pause.disabled || pause.hidden || act(pausing(), pausing() === "pause" ? gettext("Pause this run") : gettext("Go on with this run"), pausing() === "pause" ? gettext("Pause") : gettext("Go on"));
  const backNow = () => back.disabled || back.hidden || act("rollback", gettext("Roll back %(what)s", { what: verbOf(now.row) }), gettext("Roll back"));
  pause.addEventListener("click", pauseNow);
  back.addEventListener("click", backNow);
  cancel.addEventListener("click", () => act("cancel", gettext("Cancel this run"), gettext("Cancel the run")));

  function paint(row, facts) {
    now = { row, facts };
    const over = isOver(row);
    const turning = row.state === "rolling_back";
    pause.replaceChildren(row.state === "paused" ? gettext("Go on") : gettext("Pause"), " ", el("kbd", {}, "p"));
    const split = facts.before.pools ? splitText(facts.before.pools) : "";
    text(back, over ? gettext("Undo") : split ? gettext("Roll back to %(split)s", { split }) : gettext("Roll back"));
    back.append(" ", el("kbd", {}, "u"));
    hide(pause, over || turning);
    hide(cancel, over);
    hide(back, !canUndo(row, undoable) || facts.undone_by != null);
    gate(pause, refused[pausing()] ?? "");
    gate(cancel, refused.cancel ?? "");
    gate(back, refused.rollback ?? "", backWords(facts));
  }

  return { nodes: [pause, cancel, back], paint, pause: pauseNow, back: backNow };
}
