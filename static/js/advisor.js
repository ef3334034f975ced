// The advisor's page: the form's fields go into the address and to the REST API, whose answer is asked for until it is the last one.
import { order, read } from "./act.js";
import { csvOf, save } from "./advicefile.js";
import { adviceNodes, courseNode, title } from "./adviceview.js";
import { attr, el, hide, text } from "./dom.js";
import { number } from "./format.js";
import { gettext } from "./i18n.js";
import { key } from "./keys.js";
import { failed } from "./panels.js";
import { announce } from "./say.js";

const URL_OF_API = "/api/v1/advisor";
const AGAIN_MS = 700;
const narrow = matchMedia("(max-width: 1100px)");
const SKIPPED = 404; // the answer is not kept any more, or by another web process

const first = JSON.parse(document.getElementById("first").textContent);
const form = document.getElementById("ask");
const result = document.getElementById("result");
const note = document.getElementById("link-note");
const field = (name) => form.elements.namedItem(name);
const limit = (name) => Number(form.dataset[name]);

// --- The form

const PRICES = { gpu: "price", prefill_gpu: "prefill_price", decode_gpu: "decode_price" };

// What a kind of GPU costs unless the field says otherwise.
function fitPrices() {
  for (const node of form.querySelectorAll("[data-price-of]")) {
    const of = node.dataset.priceOf;
    const kind = field(of).value;
    hide(node, of !== "gpu" && (!kind || kind === field("gpu").value));
    const known = first.prices[kind];
    const words = known?.guess ? gettext("%(kind)s: a list price, which is a guess", { kind }) : gettext("%(kind)s: as in the price book", { kind });
    attr(field(PRICES[of]), "placeholder", known ? number(known.per_hour, 2) : "");
    text(node.querySelector("[data-hint]"), field(PRICES[of]).value === "" ? words : gettext("%(kind)s: for this answer alone", { kind }));
  }
}

function fitShape() {
  const terms = first.shapes[field("model").value];
  text(document.getElementById("shape"), terms ? gettext("%(layers)s layers · %(kv_heads)s KV heads · head %(head_dim)s · %(element_bytes)s B per number", terms) : "");
}

// Fields that do not apply are neither shown nor sent.
function fit() {
  for (const set of form.querySelectorAll("[data-when]")) {
    const [name, value] = set.dataset.when.split("=");
    const off = field(name).value !== value;
    set.disabled = off;
    hide(set, off);
  }
  fitPrices();
  fitShape();
}

async function textOf(input, most, words) {
  const [file] = input.files;
  if (!file) return "";
  if (file.size > most) throw new Error(gettext("%(name)s has more than %(most)s bytes: %(words)s", { name: file.name, most, words }));
  return file.text();
}

form.querySelector("[data-config-file]").addEventListener("change", async ({ target }) => {
  try {
    field("config").value = await textOf(target, limit("configMax"), gettext("it should be the model's config.json"));
  } catch (error) {
    show(refusal([error.message]));
  }
});

const whole = (name) => Number.parseInt(field(name).value, 10);

// The body of the request. Throws an Error that names the remedy.
async function body() {
  const asked = { gpu: field("gpu").value, gpus: whole("gpus"), network_gbps: Number(field("network_gbps").value), transport: field("transport").value, kv_dtype: field("kv_dtype").value, slo_ttft_ms: Number(field("slo_ttft_ms").value), slo_itl_ms: Number(field("slo_itl_ms").value) };
  for (const name of ["prefill_gpu", "decode_gpu"]) if (field(name).value) asked[name] = field(name).value;
  if (field("rate").value !== "") asked.rate = Number(field("rate").value);
  const prices = Object.entries(PRICES).flatMap(([of, name]) => (field(name).value !== "" && !field(name).closest("[hidden]") ? [[field(of).value, Number(field(name).value)]] : []));
  if (prices.length) asked.prices = Object.fromEntries(prices);
  if (field("prefix_hit").value !== "") asked.prefix_hit = Number(field("prefix_hit").value) / 100;
  if (field("model").value === "own") asked.config = config();
  else asked.model = field("model").value;
  if (field("traffic").value === "model") asked.trace = await recorded(field("of").value);
  else if (field("traffic").value === "trace") asked.trace = await textOf(form.querySelector("[data-trace-file]"), limit("traceMax"), gettext("keep its first lines only"));
  else Object.assign(asked, { input_tokens: whole("input_tokens"), output_tokens: whole("output_tokens") });
  return asked;
}

async function recorded(name) {
  const answer = await fetch(`/data/traffic/${name.split("/").map(encodeURIComponent).join("/")}`);
  if (!answer.ok) throw new Error(gettext("The recorded traffic of %(name)s could not be read (%(status)s): choose mean lengths instead.", { name, status: answer.status }));
  const found = await answer.text();
  if (!found) throw new Error(gettext("Nothing was asked of %(name)s in the last day: choose mean lengths instead.", { name }));
  return found;
}

function config() {
  try {
    return JSON.parse(field("config").value);
  } catch (error) {
    throw new Error(gettext("config.json is not JSON: %(error)s. Paste the whole file.", { error: error.message }));
  }
}

// --- The link

// The address with the inputs. A trace is never in it, a config only while the address stays short.
function link() {
  const asked = new URLSearchParams([...new FormData(form)].filter(([name, value]) => name !== "config" && typeof value === "string" && value !== ""));
  const left = [];
  if (field("traffic").value === "trace") left.push(gettext("The link holds no trace: whoever opens it chooses the file again."));
  if (field("model").value === "own") {
    let small = field("config").value;
    try {
      small = JSON.stringify(JSON.parse(small));
    } catch {
      small = ""; // what is no JSON is of no use to anybody
    }
    const longer = new URLSearchParams(asked);
    longer.set("config", small);
    if (small && String(longer).length <= limit("linkMax")) asked.set("config", small);
    else left.push(gettext("The config.json is too long for a link: whoever opens it pastes it again."));
  }
  text(note, left.join(" "));
  hide(note, !left.length);
  return `${form.action}?${asked}`;
}

async function copy() {
  const address = link();
  history.replaceState(null, "", address);
  try {
    await navigator.clipboard.writeText(address);
    announce(gettext("The link is copied"));
    text(document.getElementById("copy"), gettext("Copied"));
  } catch {
    text(note, gettext("The browser lets no page copy here: the link is in the address bar now."));
    hide(note, false);
  }
}

// --- The answer

let last = null; // the advice that is shown

// CSV and JSON of what is shown; nothing before there is any.
function files() {
  const place = document.getElementById("take");
  if (!last || place.childElementCount) return;
  const button = (words, act) => {
    const node = el("button", { class: "btn", type: "button" }, words);
    node.addEventListener("click", act);
    return node;
  };
  place.replaceChildren(
    button(gettext("Export CSV"), () => save("twinpool-advice.csv", "text/csv;charset=utf-8", csvOf(last))),
    button("JSON", () => save("twinpool-advice.json", "application/json", JSON.stringify(last, null, 2))),
  );
}

const show = (...nodes) => result.replaceChildren(...nodes.filter(Boolean));

function refusal(reasons) {
  const again = el("button", { class: "btn small", type: "button" }, gettext("Try again"));
  again.addEventListener("click", () => form.requestSubmit());
  return el("section", { class: "panel", "aria-label": gettext("Advice") }, failed(reasons.join(" "), again));
}

const waits = () => el("section", { class: "panel late", "aria-label": gettext("Advice") }, el("div", { class: "body stack sk" }, ...Array.from({ length: 3 }, () => el("div", { class: "skeleton" }))));

function mark(errors = []) {
  for (const each of form.elements) attr(each, "aria-invalid", errors.some(({ field: name }) => name.split(".")[0] === each.name) ? "true" : null);
  form.querySelector("[aria-invalid]")?.focus();
}

let course = 0; // of the newest question: an older one's answers are not shown

function paint(document, drawn) {
  const head = courseNode(document);
  const same = drawn.advice === JSON.stringify(document.advice);
  if (same && result.firstElementChild?.matches(".course") && head) result.firstElementChild.replaceWith(head);
  else if (!same || !head || !drawn.head) show(head, ...(document.advice ? adviceNodes(document.advice, result.dataset.plotly) : [waits()]));
  if (document.advice && !same) announce(`${title(document.advice)}. ${["waiting", "working"].includes(document.state) ? gettext("It is being simulated.") : ""}`);
  last = document.advice ?? last;
  files();
  Object.assign(drawn, { advice: JSON.stringify(document.advice), head: Boolean(head) });
}

async function ask() {
  const mine = ++course;
  const drawn = {};
  mark();
  let asked;
  try {
    asked = await body();
  } catch (error) {
    show(refusal([error.message]));
    return;
  }
  show(waits());
  let answer = await order(URL_OF_API, asked);
  while (mine === course) {
    if (!answer.ok && answer.status === SKIPPED) answer = await order(URL_OF_API, asked);
    if (mine !== course) return;
    if (!answer.ok) {
      mark(answer.document.errors);
      show(refusal(answer.document.reasons));
      return;
    }
    paint(answer.document, drawn);
    if (answer.status === 200) return;
    await new Promise((done) => setTimeout(done, AGAIN_MS));
    if (mine === course) answer = await read(`${URL_OF_API}/${encodeURIComponent(answer.document.id)}`);
  }
}

form.addEventListener("change", fit);
form.addEventListener("input", fitPrices);
document.getElementById("fill")?.addEventListener("change", ({ target }) => {
  if (target.value) location.assign(`${form.action}?${new URLSearchParams({ model: target.value })}`);
});
form.addEventListener("input", () => text(document.getElementById("copy"), gettext("Copy link")));
form.addEventListener("submit", (event) => {
  event.preventDefault();
  history.replaceState(null, "", link());
  ask();
  if (narrow.matches) result.scrollIntoView(); // it stands below the form
});
document.getElementById("copy").addEventListener("click", copy);
key("c", copy);
fit();
if ("asked" in form.dataset && form.reportValidity()) ask();
