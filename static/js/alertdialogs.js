// What the alerts page asks before it changes anything: a silence, a rule's setting, a channel.
import { order } from "./act.js";
import { quantity, SEVERITIES, titleOf } from "./alertwords.js";
import { ask, field } from "./dialog.js";
import { el, text } from "./dom.js";
import { gettext } from "./i18n.js";

const MINUTES = [
  [30, gettext("30 minutes")],
  [60, gettext("1 hour")],
  [240, gettext("4 hours")],
  [1440, gettext("1 day")],
  [10080, gettext("7 days")],
];
const options = (pairs, chosen) => pairs.map(([value, words]) => el("option", { value, selected: value === chosen }, words));
const select = (name, pairs, chosen) => el("select", { name }, ...options(pairs, chosen));

export function askToSilence(alert, done) {
  const minutes = select("minutes", MINUTES, 60);
  const scopes = [["alert", gettext("this alert alone")]];
  if (alert.model) scopes.push(["rule", gettext("this rule, all of %(model)s", { model: alert.model })], ["model", gettext("all alerts of %(model)s", { model: alert.model })]);
  const scope = select("scope", scopes, "alert");
  ask({
    title: gettext("Silence"),
    meta: titleOf(alert.rule),
    body: [el("p", { class: "soft" }, gettext("It fires on, but no channel is told until the silence ends.")), el("div", { class: "form" }, field(gettext("For"), minutes), field(gettext("What"), scope))],
    confirm: gettext("Silence"),
    send: (reason) => order(`/alerts/${alert.number}/silence`, { minutes: Number(minutes.value), scope: scope.value, reason }),
    done,
  });
}

export const askToEnd = (silence, done) =>
  ask({ title: gettext("End the silence"), body: [el("p", { class: "soft" }, gettext("Channels are told of what it covers if that still fires."))], confirm: gettext("End it"), send: (reason) => order(`/silences/${silence.number}/end`, { reason }), done });

// setting: {rule, model, own, …}; rule: bounds and default. models: names for a new setting of one model; none: model stays.
export function askToSet(setting, rule, models, done) {
  const scale = rule.unit === "share" ? 100 : 1;
  const input = (name, factor = 1) => el("input", { name, type: "number", step: "any", min: 0, value: setting.own[name] == null ? "" : setting.own[name] * factor, placeholder: gettext("by default") });
  const [threshold, forS, clearS] = [input("threshold", scale), input("for_s"), input("clear_s")];
  const severity = select("severity", [["", gettext("by default")], ...Object.entries(SEVERITIES)], setting.own.severity ?? "");
  const enabled = select("enabled", [["", gettext("by default")], ["true", gettext("on")], ["false", gettext("off")]], setting.own.enabled == null ? "" : String(setting.own.enabled));
  const model = models ? select("model", models.map((name) => [name, name]), models[0]) : null;
  const unit = { times: "×", ms: "ms", share: "%", s: gettext("seconds"), engines: gettext("engines"), starts: gettext("starts") }[rule.unit];
  const given = (node, factor = 1) => (node.value === "" ? null : Number(node.value) / factor);
  const limits = gettext("%(low)s to %(high)s; now %(now)s", { low: quantity(rule.unit, rule.low), high: quantity(rule.unit, rule.high), now: quantity(rule.unit, setting.threshold) });
  ask({
    title: titleOf(setting.rule),
    meta: model ? gettext("for one model") : setting.model || gettext("all models"),
    body: [
      el("p", { class: "soft" }, gettext("An empty field follows the setting of all models, and at last the default.")),
      el("div", { class: "form" }, ...(model ? [field(gettext("Model"), model)] : []), field(rule.above ? gettext("Fires above") : gettext("Fires below"), threshold, unit), field(gettext("For at least"), forS, gettext("seconds")), field(gettext("Resolves after"), clearS, gettext("seconds")), field(gettext("Severity"), severity), field(gettext("Rule"), enabled)),
      el("p", { class: "meta" }, limits),
    ],
    confirm: gettext("Set"),
    send: (reason) =>
      order(`/alert-rules/${setting.rule}`, {
        model: model ? model.value : setting.model,
        threshold: given(threshold, scale),
        for_s: given(forS),
        clear_s: given(clearS),
        severity: severity.value || null,
        enabled: enabled.value === "" ? null : enabled.value === "true",
        reason,
      }),
    done,
  });
}

// mail: whether a mail server is set.
export function askForChannel(mail, done) {
  const name = el("input", { name: "name", required: true, maxlength: 63, pattern: "[a-z0-9][a-z0-9\\-]*", autocomplete: "off", spellcheck: "false", placeholder: "on-call" });
  const kind = select("kind", [["webhook", gettext("webhook")], ["email", gettext("e-mail")]], "webhook");
  const target = el("input", { name: "target", required: true, maxlength: 1000, autocomplete: "off", spellcheck: "false" });
  const least = select("least", [["warn", gettext("all alerts")], ["bad", gettext("critical alerts alone")]], "warn");
  const hint = el("p", { class: "meta" });
  const where = el("span");
  const update = () => {
    const webhook = kind.value === "webhook";
    text(where, webhook ? gettext("URL (shown to nobody afterwards)") : gettext("Addresses, separated by commas"));
    target.placeholder = webhook ? "https://hooks.example.com/…" : "on-call@example.com";
    text(hint, webhook ? gettext("Messages are signed (Standard Webhooks, HMAC-SHA256). The secret to check them with is shown once, after this.") : mail ? "" : gettext("No mail server is set: TWINPOOL_SMTP_URL names one."));
  };
  kind.addEventListener("change", update);
  update();
  const asked = ask({
    title: gettext("Add a channel"),
    body: [el("div", { class: "form" }, field(gettext("Name"), name), field(gettext("Kind"), kind), field(gettext("Told of"), least)), el("label", { class: "field" }, where, el("span", { class: "in" }, target)), hint],
    confirm: gettext("Add"),
    ready: () => (name.value && target.value ? "" : gettext("Name and target first")),
    send: (reason) => order("/channels", { name: name.value, kind: kind.value, target: target.value.trim(), least: least.value, reason }),
    done: ({ secret }) => {
      if (secret) showSecret(name.value, secret);
      done();
    },
  });
  name.focus();
  return asked;
}

// The one time that a webhook's secret is seen.
function showSecret(name, secret) {
  const close = el("button", { class: "btn primary", type: "button" }, gettext("I have stored it"));
  const node = el("dialog", { class: "panel help ask", "aria-labelledby": "secret-title" }, el("header", {}, el("h2", { id: "secret-title" }, gettext("Secret of %(name)s", { name }))), el("div", { class: "body stack empty-code" }, el("p", { class: "soft" }, gettext("Give it to the receiver: it proves that messages are ours. It is shown this once and stored nowhere.")), el("code", { class: "secret" }, secret), el("div", { class: "ask-end" }, close)));
  close.addEventListener("click", () => node.close());
  node.addEventListener("close", () => node.remove());
  document.body.append(node);
  node.showModal();
}

export const askToUpdate = (channel, enabled, done) =>
  ask({ title: enabled ? gettext("Switch on %(name)s", { name: channel.name }) : gettext("Switch off %(name)s", { name: channel.name }), body: [el("p", { class: "soft" }, enabled ? gettext("It is told of what fires now.") : gettext("Nobody is told through it until it is switched on again."))], confirm: enabled ? gettext("Switch on") : gettext("Switch off"), send: (reason) => order(`/channels/${channel.name}`, { enabled, reason }), done });

export const askToRemove = (channel, done) =>
  ask({ title: gettext("Remove %(name)s", { name: channel.name }), body: [el("p", { class: "soft" }, gettext("Nobody is told through it any more, also of what is still owed."))], confirm: gettext("Remove"), danger: true, send: (reason) => order(`/channels/${channel.name}/remove`, { reason }), done });
