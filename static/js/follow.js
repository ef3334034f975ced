// What every live page does: one socket for its topics, their rows, the mark in the top bar, and one paint per frame. While
// frames come nothing else paints; when they do not, once a second, because ages must still count up.
import { ALERTS, paintAsked, paintBadge } from "./badge.js";
import { now } from "./clock.js";
import { makeConnection } from "./connection.js";
import { Rows } from "./rows.js";
import { LiveSocket } from "./socket.js";

const AGAIN_MS = 1500; // a topic that is not there yet is asked for again
const withAlerts = (topics) => [...new Set([...topics, ALERTS])]; // the bar of every page counts them
const byId = (id) => document.getElementById(id);

// frames: what the page came with. paint({cut, down}) after each frame. missing(topic): the server has no such topic now;
// true asks for it again in a moment.
// `also`: topics whose rows are kept though they are not followed (any more).
export function follow({ topics, also = [], frames = [], paint, frame = () => {}, missing = () => false }) {
  const feeds = new Map();
  const rows = (topic) => feeds.get(topic) ?? new Rows();
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new LiveSocket(`${scheme}://${location.host}/ws/live`, withAlerts(topics));
  const connection = makeConnection(byId("live"), byId("banners"), socket);
  let followed = topics;
  let heard = 0; // ms, the newest frame

  for (const topic of withAlerts([...topics, ...also])) feeds.set(topic, new Rows());
  for (const one of frames) if (one) feeds.get(one.topic)?.apply(one);

  function repaint() {
    const { at } = rows(followed[0]);
    paint(connection(at === null ? null : now() - at));
  }

  // From now on these topics; what is known of those that stay is kept.
  function change(wanted) {
    if (wanted.join() === followed.join()) return;
    followed = wanted;
    for (const topic of wanted) if (!feeds.has(topic)) feeds.set(topic, new Rows());
    socket.follow(withAlerts(wanted));
  }

  socket.addEventListener("change", repaint);
  addEventListener("zonechange", repaint);
  socket.addEventListener("missing", ({ detail: topic }) => {
    if (followed.includes(topic) && missing(topic)) setTimeout(() => socket.resync(), AGAIN_MS);
  });
  socket.addEventListener("frame", ({ detail }) => {
    if (!withAlerts(followed).includes(detail.topic)) return;
    if (!rows(detail.topic).apply(detail)) {
      socket.resync();
      return;
    }
    if (detail.topic === ALERTS) {
      paintBadge(rows(ALERTS).get(ALERTS));
      paintAsked(rows(ALERTS).get("proposals"));
    }
    if (!followed.includes(detail.topic)) return;
    heard = Date.now();
    repaint();
    frame(detail.topic);
  });
  setInterval(() => Date.now() - heard > 1100 && repaint(), 1000);
  return { rows, change, repaint };
}
