// How the page says whether it is live: the mark in the top bar, and a banner when the socket is down for longer.
import { attr, el, hide, text } from "./dom.js";
import { clockSeconds, duration, span } from "./format.js";
import { gettext } from "./i18n.js";
import { announce } from "./say.js";

const BANNER_AFTER_S = 3;
const QUIET_S = 4; // frames come once a second; with the repaint of each second the mark says so within 5 s

function makeBanner(socket) {
  const what = el("span", { class: "say bad" });
  const so = el("span", { class: "soft" });
  const next = el("span", { class: "meta" });
  const retry = el("button", { class: "btn small", type: "button" }, gettext("Retry now"));
  const enter = el("a", { class: "btn small", href: `/login?next=${encodeURIComponent(location.pathname)}` }, gettext("Sign in"));
  retry.addEventListener("click", () => socket.retry());
  const node = el("div", { class: "banner bad", id: "disconnected" }, what, so, el("span", { class: "end" }, next, retry, enter));
  hide(node, true);
  return {
    node,
    paint() {
      const out = socket.state === "signed-out";
      const since = socket.downSince / 1000;
      text(
        what,
        out
          ? gettext("Your session has ended")
          : gettext("Disconnected from the control plane since %(time)s (%(age)s)", {
              time: clockSeconds(since),
              age: span(Date.now() / 1000 - since),
            }),
      );
      text(so, gettext("Numbers below are the last ones seen. Traffic does not depend on this page."));
      const wait = socket.nextTryAt === null ? null : Math.max(0, Math.ceil((socket.nextTryAt - Date.now()) / 1000));
      text(next, out ? "" : wait === null ? gettext("trying now") : gettext("next try in %(n)s s", { n: wait }));
      hide(retry, out);
      hide(enter, !out);
    },
  };
}

// The server answers, and yet nothing live has come since the page was opened.
function makeNotice() {
  const what = el("span", { class: "say warn" });
  const so = el("span", { class: "soft" });
  const node = el("div", { class: "banner warn", id: "nothing-live" }, what, so);
  hide(node, true);
  return {
    node,
    paint(since) {
      text(what, gettext("No live figures since this page was opened at %(time)s (%(age)s)", { time: clockSeconds(since), age: span(Date.now() / 1000 - since) }));
      text(so, gettext("Valkey or ingest does not answer; manage.py doctor says which. Charts of the past and requests do not depend on them. The page goes on by itself."));
    },
  };
}

// paint(frame age in s or null); returns {cut, down}: whether the feed is stale or cut, and whether the socket is.
export function makeConnection(mark, banners, socket) {
  const words = mark.querySelector("[data-live]");
  const banner = makeBanner(socket);
  const notice = makeNotice();
  const openedAt = Date.now() / 1000;
  let told = false;
  banners.before(banner.node, notice.node);

  function tell(down) {
    if (down !== told) announce(down ? gettext("Disconnected") : gettext("Live again"));
    told = down;
  }

  function show(className, label) {
    attr(mark, "class", className);
    attr(mark, "aria-label", label);
    text(words, label);
  }

  return (age) => {
    const downFor = socket.downSince === null ? 0 : (Date.now() - socket.downSince) / 1000;
    const down = socket.state === "signed-out" || downFor > BANNER_AFTER_S;
    const nothing = !down && age === null && socket.state === "open" && Date.now() / 1000 - openedAt > QUIET_S;
    hide(banner.node, !down);
    hide(notice.node, !nothing);
    tell(down);
    if (down) {
      banner.paint();
      show("live is-off", gettext("disconnected %(age)s", { age: duration(downFor) }));
    } else if (nothing) {
      notice.paint(openedAt);
      show("live is-stale", gettext("no live data"));
    } else if (age === null) {
      show("live is-wait", socket.state === "open" ? gettext("no data yet") : gettext("connecting"));
    } else if (age > QUIET_S) {
      show("live is-stale", gettext("stale since %(age)s", { age: span(age) }));
    } else {
      show("live", gettext("live · %(n)s s", { n: Math.max(0, Math.round(age)) }));
    }
    return { cut: down || nothing || (age !== null && age > QUIET_S), down };
  };
}
