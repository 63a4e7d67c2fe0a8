// What is said aloud to who does not see the page: seldom, and only what matters.

import { find, say } from "./dom.js";
import { count, many, percent, score } from "./words.js";

const SECONDS = 60;

let last = -Infinity;
let state = "";

export function speak(text, now = performance.now()) {
  last = now;
  say(find("spoken"), text);
}

// Once a minute how it stands, and at once that it has begun or ended.
export function follow({ run, learning, children }) {
  const now = performance.now();
  if (run.state === state && now - last < 1000 * SECONDS) return;
  state = run.state;
  const parts = [];
  if (state === "over") parts.push(`The run is over: ${run.reason}`);
  if (state === "waiting") parts.push("The parent waits for children");
  if (learning.mean_return !== null) {
    const goal = run.goal === null ? "" : `, goal ${count(run.goal)}`;
    parts.push(
      `${run.kind === "search" ? "Best score" : "Mean return"} ${score(learning.mean_return)}${goal}`,
    );
  }
  if (state === "training") {
    const there = children.filter((child) => child.state !== "away").length;
    parts.push(many(there, "child training", "children training"));
    if (run.share !== null) parts.push(`${percent(run.share)} done`);
  }
  speak(`${parts.join(". ")}.`, now);
}
