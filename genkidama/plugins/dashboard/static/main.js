// The page: what the parent says goes to each part of it, once a frame at most.

import * as children from "./children.js";
import * as controls from "./controls.js";
import * as curve from "./curve.js";
import * as details from "./details.js";
import { find, mark, reveal, say } from "./dom.js";
import { Feed } from "./feed.js";
import * as head from "./head.js";
import * as measures from "./measures.js";
import * as play from "./play.js";
import * as runs from "./runs.js";
import * as search from "./search.js";
import * as side from "./side.js";
import * as speech from "./speech.js";
import { clock } from "./words.js";

let latest = null;
let connection = "connecting";

// When something was heard, and whether the parent's clock goes on: that of a finished run stands.
let heard = 0;
let ticking = true;
let frame = 0;

// `genkidama serve` shows each of several runs at /runs/NAME/.
reveal(find("back"), /\/runs\/[^/]+\/$/.test(location.pathname));

for (const part of [children, controls, curve, details, play, runs, search, side]) part.begin();

// The best score holds until now.
function held({ run, learning }) {
  const { columns, rows } = learning.curve;
  return { columns, rows: [...rows, [run.elapsed, learning.steps, rows.at(-1)[2]]] };
}

function draw() {
  frame = 0;
  if (latest === null) return;
  reveal(find("waiting"), false);
  if (document.body.hasAttribute("data-empty")) performance.mark("drawn");
  mark(document.body, "data-empty", null);
  if (latest.type === "runs") {
    runs.show(latest);
    return;
  }
  // While nobody answers, nothing is known to get older.
  const passed = connection === "live" && ticking ? (performance.now() - heard) / 1000 : 0;
  const now = latest.time + (latest.run.state === "over" ? 0 : passed);
  head.show(latest, now);
  if (latest.learning.curve.rows.length) {
    const searches = latest.run.kind === "search";
    const learned = searches ? held(latest) : latest.learning.curve;
    const name = searches ? "Best score so far" : "Mean return";
    curve.show(
      name,
      [{ name: latest.run.name, curve: learned, style: "s0" }],
      latest.run.goal,
      searches,
    );
  }
  controls.show(latest);
  play.show(latest);
  search.show(latest, now);
  children.show(latest, now);
  measures.show(latest);
  side.show(latest);
  details.draw();
  speech.follow(latest);
}

function soon() {
  frame ||= requestAnimationFrame(draw);
}

function tell(state) {
  const before = connection;
  const over = latest?.run?.state === "over";
  connection = over && (state === "live" || state === "lost") ? "finished" : state;
  mark(find("connection"), "data-state", connection);
  const since = latest === null ? "" : ` · as of ${clock(latest.time)}`;
  const told = { lost: `not connected, trying again${since}`, denied: "not allowed" };
  say(find("connection-text"), told[connection] ?? connection);
  if (connection === before) return;
  if (connection === "lost") speech.speak("Not connected to the parent, trying again.");
  if (connection === "live" && before === "lost") speech.speak("Connected again.");
  if (connection === "denied")
    say(find("waiting"), "A viewer's link is needed: ask whoever started the run for one.");
  if (connection === "lost" && latest === null)
    say(find("waiting"), "The parent does not answer, trying again …");
}

new Feed((document) => {
  // Another run at the same address begins with nothing of the one before.
  if (latest !== null && document.run?.name !== latest.run?.name) return location.reload();
  ticking = latest === null || document.time > latest.time;
  latest = document;
  heard = performance.now();
  soon();
}, tell);

// "Last seen" goes on between messages.
setInterval(() => latest !== null && !document.hidden && soon(), 1000);
