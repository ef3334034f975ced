// A dialog that asks before anything is changed: what will be done, why, and what was refused. Esc closes it.
import { gate, link } from "./act.js";
import { el, redraw, text } from "./dom.js";
import { gettext } from "./i18n.js";
import { changeOf, verbOf } from "./opwords.js";

export const field = (label, input, unit = "") =>
  el("label", { class: "field" }, label, el("span", { class: "in" }, input, unit && el("span", { class: "unit" }, unit)));

// The reasons of a refusal, with what runs or what changed meanwhile.
export function refusal({ reasons = [], url, operation, since = [] }) {
  const list = reasons.map((reason) => el("li", {}, el("span", { class: "say bad wrap" }, reason)));
  const changed = since.map((row) =>
    el("li", { class: "soft" }, el("a", { href: `/operations/${row.number}` }, `${row.number}`), ` ${verbOf(row)} · ${row.actor} · ${row.reason} · ${changeOf(row)}`),
  );
  const other = url ? [el("li", {}, el("a", { href: url }, gettext("Open operation %(n)s", { n: operation })))] : [];
  return el("ul", { class: "reasons" }, ...list, ...other, ...changed);
}

// send(reason) -> an answer of act.order; done(document) when it was taken. ready(): "" or why it cannot be sent yet.
export function ask({ title, meta = "", body = [], confirm, danger = false, send, done, ready = () => "", refused = () => {} }) {
  const reason = el("input", { type: "text", maxlength: 500, required: true, autocomplete: "off", name: "reason" });
  const said = el("div", { role: "alert" });
  const go = el("button", { class: danger ? "btn danger" : "btn primary" }, confirm);
  const close = el("button", { class: "btn", type: "button" }, gettext("Close"), " ", el("kbd", {}, "Esc"));
  const form = el("form", { class: "body stack" }, ...body, field(gettext("Reason (kept with the operation)"), reason), said, el("div", { class: "ask-end" }, close, go));
  const heading = el("h2", { id: "ask-title" }, title);
  const node = el("dialog", { class: "panel help ask", "aria-labelledby": "ask-title" }, el("header", {}, heading, el("span", { class: "meta" }, meta)), form);
  let sending = false;

  function update() {
    gate(go, sending ? gettext("on its way") : ready() || (reason.value.trim() ? "" : gettext("Say why first")));
  }

  async function submit(event) {
    event.preventDefault();
    update();
    if (go.disabled) return;
    sending = true;
    update();
    const { ok, document: told } = await send(reason.value.trim());
    sending = false;
    if (ok) {
      node.close();
      done(told);
      return;
    }
    redraw(said, JSON.stringify(told), () => [refusal(told)]);
    refused(told);
    update();
  }

  form.addEventListener("submit", submit);
  form.addEventListener("input", update);
  close.addEventListener("click", () => node.close());
  link.addEventListener("change", update);
  node.addEventListener("close", () => {
    link.removeEventListener("change", update);
    node.remove();
  });
  document.body.append(node);
  update();
  node.showModal();
  if (!body.length) reason.focus();
  return { node, update, close: () => node.close(), title: (words) => text(heading, words) };
}

export const isOpen = () => document.querySelector("dialog[open]") !== null;
