// One socket for all topics of a page. It comes back by itself with back-off, and asks for a snapshot when it must.
const FIRST_WAIT_S = 0.5;
const LONGEST_WAIT_S = 15;
const SILENCE_S = 10; // a socket that spoke before and is this quiet is asked for a snapshot
const ANSWER_S = 5; // and taken for dead when not even that comes
const SIGNED_OUT = 4401;

export class LiveSocket extends EventTarget {
  #url;
  #topics;
  #socket = null;
  #wait = FIRST_WAIT_S;
  #timer = 0;
  #heardAt = 0; // ms; 0 until the first frame of this connection: a server without data yet says nothing
  #askedAt = 0;

  state = "connecting"; // connecting, open, down, signed-out
  downSince = Date.now(); // ms on this machine's clock; null while open
  nextTryAt = null;

  // Events: "frame" (detail: the frame), "missing" (detail: a topic that the server does not have now) and "change" (state
  // is another).
  constructor(url, topics) {
    super();
    this.#url = url;
    this.#topics = topics;
    setInterval(() => this.#watch(), 1000);
    addEventListener("online", () => this.retry());
    document.addEventListener("visibilitychange", () => document.hidden || this.retry());
    this.#open();
  }

  // Tries now instead of when the back-off says.
  retry() {
    if (this.state !== "down" || this.#socket) return;
    clearTimeout(this.#timer);
    this.#open();
  }

  // Asks for the whole state; at most one question is open.
  resync() {
    if (this.#socket?.readyState !== WebSocket.OPEN || this.#askedAt) return;
    this.#askedAt = Date.now();
    this.#socket.send(JSON.stringify({ subscribe: this.#topics }));
  }

  // Follows these topics from now on; each is answered with a snapshot.
  follow(topics) {
    this.#topics = topics;
    this.#askedAt = 0;
    this.resync();
  }

  #become(state) {
    if (this.state === state) return;
    this.state = state;
    this.downSince = state === "open" ? null : (this.downSince ?? Date.now());
    this.dispatchEvent(new Event("change"));
  }

  #open() {
    this.nextTryAt = null;
    const socket = new WebSocket(this.#url);
    this.#socket = socket;
    this.#askedAt = 0;
    this.#heardAt = 0;
    socket.onopen = () => {
      this.resync();
      this.#become("open");
    };
    socket.onmessage = (event) => this.#hear(event.data);
    socket.onclose = (event) => {
      if (this.#socket === socket) this.#lost(event.code);
    };
  }

  #hear(data) {
    this.#heardAt = Date.now();
    this.#askedAt = 0;
    this.#wait = FIRST_WAIT_S;
    const frame = JSON.parse(data);
    if (frame.error === "unknown_topic") this.dispatchEvent(new CustomEvent("missing", { detail: frame.topic }));
    else if (frame.error) console.warn(frame.error, frame.message);
    else this.dispatchEvent(new CustomEvent("frame", { detail: frame }));
  }

  #lost(code) {
    this.#socket = null;
    if (code === SIGNED_OUT) {
      this.#become("signed-out");
      return;
    }
    const wait = this.#wait * (0.8 + 0.4 * Math.random());
    this.#wait = Math.min(LONGEST_WAIT_S, this.#wait * 2);
    this.nextTryAt = Date.now() + wait * 1000;
    this.#timer = setTimeout(() => this.#open(), wait * 1000);
    this.#become("down");
  }

  #watch() {
    if (this.#socket?.readyState !== WebSocket.OPEN || !this.#heardAt) return;
    const now = Date.now();
    if (this.#askedAt && now - this.#askedAt > ANSWER_S * 1000) this.#drop();
    else if (now - this.#heardAt > SILENCE_S * 1000) this.resync();
  }

  // The other side is gone without a word: do not wait for a close that may take minutes.
  #drop() {
    const socket = this.#socket;
    this.#lost(0);
    socket.onmessage = null;
    socket.close();
  }
}
