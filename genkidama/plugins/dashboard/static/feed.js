// What the parent says, as it says it. A connection that is lost is made again, without end.

import { address } from "./dom.js";
import { fold } from "./fold.js";

const FIRST_WAIT = 0.5;
const LONGEST_WAIT = 8;
const LIST_EVERY = 5;

// A connection that is open, and says nothing for so long, is dead: the parent speaks every fifteen
// seconds at least.
const SILENCE = 45;

export class Feed {
  #document = null;
  #wait = FIRST_WAIT;
  #timer = 0;
  #silence = 0;
  #show;
  #tell;

  // `show(document)` after every message; `tell(state)` with "live", "lost" or "denied".
  constructor(show, tell) {
    this.#show = show;
    this.#tell = tell;
    for (const happened of ["online", "pageshow"]) {
      addEventListener(happened, () => {
        if (!this.#timer) return; // It asks already.
        clearTimeout(this.#timer);
        this.#wait = FIRST_WAIT;
        this.#ask();
      });
    }
    this.#ask();
  }

  // A first look by HTTP: it says what is there, and whether one may look.
  async #ask() {
    this.#timer = 0;
    let answer;
    try {
      answer = await fetch(address("status"), { cache: "no-store" });
      if (answer.status === 401 || answer.status === 403) return this.#tell("denied");
      if (!answer.ok) throw new Error(answer.statusText);
      this.#take(await answer.json());
    } catch {
      return this.#lose();
    }
    if (this.#document.type === "runs") return this.#later(LIST_EVERY);
    return this.#watch();
  }

  #watch() {
    const target = address("watch");
    target.protocol = target.protocol.replace("http", "ws");
    const socket = new WebSocket(target);
    const hear = () => {
      clearTimeout(this.#silence);
      this.#silence = setTimeout(() => socket.close(), 1000 * SILENCE);
    };
    socket.onopen = hear;
    socket.onmessage = ({ data }) => {
      hear();
      this.#wait = FIRST_WAIT;
      this.#take(JSON.parse(data));
    };
    socket.onclose = () => {
      clearTimeout(this.#silence);
      this.#lose();
    };
  }

  #take(message) {
    this.#document = fold(this.#document, message);
    this.#show(this.#document);
    this.#tell("live");
  }

  #lose() {
    this.#tell("lost");
    this.#later(this.#wait);
    this.#wait = Math.min(LONGEST_WAIT, 2 * this.#wait);
  }

  // Not all pages at the same moment.
  #later(seconds) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#ask(), 1000 * seconds * (0.75 + 0.5 * Math.random()));
  }
}
