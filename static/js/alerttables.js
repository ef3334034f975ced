// The tables under the alerts that fire: what was, silences, rules and channels. Drawn anew when the page's data changed.
import { gate, order, read } from "./act.js";
import { askToEnd, askToRemove, askToSet, askToUpdate } from "./alertdialogs.js";
import { lasting, limitOf, quantity, reasonOf, SEVERITIES, subjectNode, titleOf } from "./alertwords.js";
import { el, hide, redraw } from "./dom.js";
import { dateTime, number, span, utc } from "./format.js";
import { gettext } from "./i18n.js";
import { say } from "./say.js";

const TRIES = 30;
const byId = (id) => document.getElementById(id);
const when = (at) => el("span", { title: utc(at) }, dateTime(at));
const said = (kind, words) => {
  const node = el("span");
  say(node, kind, words);
  return node;
};

// A small button that opens a dialog; `why`: why this viewer may not.
function button(words, why, act, label = null) {
  const node = el("button", { class: "btn small", type: "button", "aria-label": label }, words);
  node.addEventListener("click", act);
  gate(node, why);
  return node;
}

// The rows of a table, or its empty state.
function fill(id, signature, rows) {
  redraw(byId(id).tBodies[0], JSON.stringify(signature), () => rows());
  hide(byId(id), byId(id).tBodies[0].rows.length === 0);
  hide(byId(`${id}-none`), byId(id).tBodies[0].rows.length > 0);
}

export function paintOver(facts, rules) {
  fill("over", facts.rows, () =>
    facts.rows.map((row) =>
      el(
        "tr",
        { "data-alert": row.number },
        el("td", { class: "when" }, when(row.fired_at)),
        el("td", { class: "wrap" }, el("a", { class: "what", href: `/alerts/${row.number}` }, titleOf(row.rule)), " ", subjectNode(row), " ", el("span", { class: "meta" }, SEVERITIES[row.severity])),
        el("td", { class: "opt r" }, quantity(rules[row.rule]?.unit, row.peak), " ", el("span", { class: "meta" }, limitOf(rules[row.rule], row.threshold))),
        el("td", { class: "r" }, span(row.resolved_at - row.fired_at)),
        el("td", { class: "opt wrap soft" }, reasonOf(row.reason)),
      ),
    ),
  );
}

export function paintSilences(facts, refused, changed) {
  fill("silences", [facts.silences, facts.refused], () =>
    facts.silences.map((row) => {
      const what = [row.rule && titleOf(row.rule), row.model, row.subject].filter(Boolean).join(" · ");
      return el("tr", {}, el("td", { class: "wrap" }, el("b", {}, what), " ", el("span", { class: "meta" }, [row.actor, row.reason].join(" · "))), el("td", { class: "r soft" }, gettext("until"), " ", when(row.until)), el("td", { class: "r" }, button(gettext("End"), refused(row.model, "unsilence_alert"), () => askToEnd(row, changed), gettext("End the silence of %(what)s", { what }))));
    }),
  );
}

function ruleRow(row, rule, facts, models, refused, changed) {
  const free = models.filter((name) => !facts.settings.some((each) => each.rule === row.rule && each.model === name));
  const change = button(gettext("Change"), refused(row.model, "set_alert_rule"), () => askToSet(row, rule, null, changed), gettext("Change %(rule)s", { rule: [titleOf(row.rule), row.model].filter(Boolean).join(" ") }));
  const more = !row.model && rule.of_models && free.length ? [" ", button(gettext("For one model"), Object.values(facts.refused).every((each) => each.set_alert_rule) ? refused("", "set_alert_rule") : "", () => askToSet({ ...row, model: "", own: {} }, rule, free, changed), gettext("Set %(rule)s for one model", { rule: titleOf(row.rule) }))] : [];
  const own = Object.keys(row.own).length ? el("span", { class: "meta" }, gettext("changed")) : null;
  const name = row.model ? el("td", { class: "wrap of-model" }, row.model, " ", own) : el("td", { class: "wrap" }, el("b", {}, titleOf(row.rule)), " ", own);
  return el("tr", { class: row.enabled ? null : "dim" }, name, el("td", { class: "r" }, limitOf(rule, row.threshold)), el("td", { class: "opt r" }, lasting(row.for_s)), el("td", { class: "opt r" }, lasting(row.clear_s)), el("td", { class: "opt soft" }, row.enabled ? SEVERITIES[row.severity] : said("idle", gettext("off"))), el("td", { class: "r" }, change, ...more));
}

export function paintRules(facts, rules, models, refused, changed) {
  fill("rules", [facts.settings, facts.refused], () => facts.settings.map((row) => ruleRow(row, rules[row.rule], facts, models, refused, changed)));
}

// Sends a test message and says what became of it.
async function tryOut(channel, node, changed) {
  say(node, "run", gettext("on its way"));
  const sent = await order(`/channels/${channel.name}/try`, {});
  if (!sent.ok) {
    say(node, "bad wrap", sent.document.reasons.join("; "));
    return;
  }
  for (let count = 0; count < TRIES; count += 1) {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    const { ok, document } = await read(sent.document.url);
    if (!ok || document.state === "waiting") continue;
    say(node, document.state === "sent" ? "ok" : "bad wrap", document.state === "sent" ? gettext("the test arrived") : document.error);
    changed();
    return;
  }
  say(node, "warn wrap", gettext("not sent yet: does a control worker run?"));
}

function stateNode(channel) {
  if (!channel.enabled) return said("idle", gettext("off"));
  if (channel.error) return said("bad wrap", gettext("%(error)s (%(n)s waiting)", { error: channel.error, n: number(channel.waiting) }));
  return channel.sent_at ? el("span", { class: "soft" }, gettext("last told"), " ", when(channel.sent_at)) : el("span", { class: "soft" }, gettext("never told anything yet"));
}

function channelRow(channel, why, changed) {
  const outcome = el("span");
  const named = (words) => gettext("%(act)s %(name)s", { act: words, name: channel.name });
  const buttons = [
    button(gettext("Test"), why.try_channel, () => tryOut(channel, outcome, changed), named(gettext("Test"))),
    button(channel.enabled ? gettext("Switch off") : gettext("Switch on"), why.update_channel, () => askToUpdate(channel, !channel.enabled, changed), named(channel.enabled ? gettext("Switch off") : gettext("Switch on"))),
    button(gettext("Remove"), why.remove_channel, () => askToRemove(channel, changed), named(gettext("Remove"))),
  ];
  const least = channel.least === "bad" ? gettext("critical alerts alone") : gettext("all alerts");
  return el("tr", { "data-channel": channel.name }, el("td", { class: "wrap" }, el("b", {}, channel.name), " ", el("span", { class: "mono soft" }, channel.to), " ", el("span", { class: "meta" }, least), el("div", {}, stateNode(channel), " ", outcome)), el("td", { class: "r acts" }, ...buttons.flatMap((node) => [node, " "])));
}

export function paintChannels(facts, changed) {
  fill("channels", [facts.channels, facts.channels_refused], () => facts.channels.map((channel) => channelRow(channel, facts.channels_refused, changed)));
  for (const node of document.querySelectorAll("[data-add-channel]")) gate(node, facts.channels_refused.add_channel ?? "");
}
