// Orders to the control plane, and when a button may be pressed.
import { attr } from "./dom.js";
import { gettext } from "./i18n.js";

const token = () => document.querySelector("[name=csrfmiddlewaretoken]").value;

// Whether the page hears from the control plane: what is seen is old while it does not, so nothing may be changed.
export const link = Object.assign(new EventTarget(), { down: false });

export function setDown(down) {
  if (link.down === down) return;
  link.down = down;
  link.dispatchEvent(new Event("change"));
}

// Enables a button, or says in its title why not. `why`: of this viewer or this moment; "" is no reason.
export function gate(button, why = "", title = null) {
  const reason = link.down ? gettext("Disconnected: nothing can be changed now") : why;
  if (button.disabled !== Boolean(reason)) button.disabled = Boolean(reason);
  attr(button, "title", reason || title);
}

export const modelUrl = (name, rest = "") => `/models/${name.split("/").map(encodeURIComponent).join("/")}${rest && `/${rest}`}`;

async function answer(request) {
  let response;
  try {
    response = await request;
    const document = await response.json();
    return { ok: response.ok, status: response.status, document };
  } catch (error) {
    console.info(error);
    const reason = response
      ? gettext("The control plane answered HTTP %(status)s.", { status: response.status })
      : gettext("The control plane did not answer. Look at the operations before you try again.");
    return { ok: false, status: response?.status ?? 0, document: { kind: "unreachable", reasons: [reason] } };
  }
}

// {ok, status, document}; a refusal has document.kind and document.reasons.
export const order = (url, body) =>
  answer(fetch(url, { method: "POST", headers: { "Content-Type": "application/json", "X-CSRFToken": token() }, body: JSON.stringify(body) }));

export const read = (url) => answer(fetch(url, { headers: { Accept: "application/json" } }));
