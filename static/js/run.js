// An operation that a page follows: its bar with the figures and buttons, and where its rows come from.
import { read } from "./act.js";
import { attr, el, hide, redraw, text } from "./dom.js";
import { gettext } from "./i18n.js";
import { key } from "./keys.js";
import { isOver } from "./opwords.js";
import { makeProgress, outcomeNode, paintFacts, paintMeta, progressBar, runFacts, runSentence } from "./runbar.js";
import { Rows } from "./rows.js";
import { makeSteering } from "./steer.js";

export const enginesById = (...feeds) => new Map(feeds.flatMap((rows) => rows.of("engine")).map((engine) => [engine.engine, engine]));

// `topics`: what the page follows beside the operation. began(), ended(row): the page shows one; it is over.
export function makeRun({ panel, first, feeds, topics, began = () => {}, ended = () => {} }) {
  const meta = panel.querySelector("[data-meta]");
  const facts = el("dl", { class: "facts" });
  const outcome = el("div");
  const progress = makeProgress();
  const spoken = el("p", { class: "sr", role: "status" });
  const details = el("a", { class: "btn" }, gettext("Details"));
  const buttons = el("div", { class: "btns" });
  const none = new Rows();
  const steering = makeSteering({ refused: first.refused, undoable: first.undoable, done: ({ operation }) => (operation === run.facts?.number ? renew() : run.show(operation)) });
  const run = { facts: first.operation, buttons };
  let asked = 0; // the operation that is being fetched
  let told = 0; // the one whose end was said
  buttons.append(...steering.nodes, details);
  panel.append(el("div", {}, facts, outcome), buttons, progress, spoken);
  key("p", () => run.facts && steering.pause());
  key("u", () => run.facts && steering.back());

  const topic = () => `operation:${run.facts.number}`;

  // {row, rows} of the operation that is shown; row is null while none is.
  run.rows = () => {
    const rows = run.facts ? feeds.rows(topic()) : none;
    return { rows, row: (run.facts && rows.get(topic())) ?? null };
  };

  // Rows of the database stand in for the live topic while that is not there (yet, or any more).
  async function renew() {
    const mine = run.facts.number;
    const { ok, document } = await read(`/operations/${mine}/rows`);
    if (!ok || run.facts?.number !== mine) return;
    run.facts = document;
    const rows = feeds.rows(topic());
    if (rows.seq === null || document.frame.rows.some((row) => row.id === topic() && isOver(row))) rows.apply(document.frame);
    feeds.repaint();
  }

  run.missing = () => {
    const { row } = run.rows();
    if (!run.facts || (row && isOver(row))) return false;
    renew();
    return true;
  };

  run.show = async (number) => {
    asked = number;
    const { ok, document } = await read(`/operations/${number}/rows`);
    if (!ok || asked !== number) return;
    began();
    run.facts = document;
    feeds.change([...topics, topic()]);
    if (feeds.rows(topic()).seq === null) feeds.rows(topic()).apply(document.frame);
    feeds.repaint();
  };

  // Another operation of the model is under way: shown unless one is that still runs.
  run.noticed = (number) => {
    const { row } = run.rows();
    if (number !== asked && number !== run.facts?.number && (!row || isOver(row))) run.show(number);
  };

  run.leave = () => {
    run.facts = null;
    feeds.change(topics);
  };

  run.paintDraft = (words, found) => {
    text(meta, words.filter(Boolean).join(" · "));
    paintFacts(facts, found);
    redraw(outcome, "", () => []);
    for (const node of [...steering.nodes, details, progress]) hide(node, true);
    text(spoken, "");
  };

  run.paint = ({ row, rows, engines, model }) => {
    const steps = rows.of("step");
    const traffic = rows.get(`traffic:${row.number}`);
    paintMeta(meta, row);
    paintFacts(facts, runFacts({ row, steps, traffic, engines, model }));
    hide(progress, steps.length === 0);
    progressBar(progress, steps);
    text(spoken, runSentence(row, steps, traffic));
    redraw(outcome, JSON.stringify([row.state, row.outcome]), () => (["pending", "running"].includes(row.state) ? [] : [outcomeNode(row)]));
    steering.paint(row, run.facts);
    hide(details, location.pathname === `/operations/${row.number}`);
    attr(details, "href", `/operations/${row.number}`);
    if (isOver(row) && told !== row.number) {
      told = row.number;
      ended(row);
      feeds.change(topics);
      renew();
    }
  };

  return run;
}
