// All that is known of one child or one trial, in a dialog that follows what happens.

import { facts, find, say } from "./dom.js";

let pairs = null;

// `of()` gives terms and values, or null when there is no such thing any longer.
export function open(title, of) {
  pairs = of;
  say(find("details-title"), title);
  draw();
  find("details").showModal();
}

export function draw() {
  const found = pairs?.() ?? null;
  if (found !== null) facts(find("details-facts"), found);
}

export function begin() {
  find("details").addEventListener("close", () => {
    pairs = null;
  });
}
