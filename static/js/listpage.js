// What pages of long lists share: filters that stand in the address, and the way to older rows.
import { el, hide } from "./dom.js";
import { gettext } from "./i18n.js";

// The filters that are set, as an address has them.
export const askedQuery = (asked) => new URLSearchParams(Object.entries(asked).filter(([, value]) => value));

// filters: [name, words, show(value)] each; choices and asked by name.
export function makeFilters(form, filters, { choices, asked }) {
  for (const [name, words, show] of filters) {
    const options = [el("option", { value: "" }, gettext("all")), ...choices[name].map((value) => el("option", { value, selected: value === asked[name] }, show(value)))];
    const select = el("select", { name, class: "pick" }, ...options);
    select.addEventListener("change", () => {
      for (const input of form.elements) if (!input.value) input.disabled = true; // an address without empty filters
      form.submit();
    });
    form.append(el("label", { class: "field" }, words, select));
  }
  if (Object.values(asked).some(Boolean)) form.append(el("a", { class: "btn small", href: form.action }, gettext("Show all")));
}

// oldest: number of the oldest row that is shown.
export function makeFoot(foot, { asked, newest, more }, oldest) {
  const query = askedQuery(asked);
  const nodes = [];
  if (!newest) nodes.push(el("a", { class: "btn small", href: `?${query}` }, gettext("Newest")));
  if (more) {
    query.set("before", oldest);
    nodes.push(el("a", { class: "btn small", href: `?${query}` }, gettext("Older")));
  }
  foot.replaceChildren(...nodes.flatMap((node) => [node, " "]));
  hide(foot, nodes.length === 0);
}
