// What matters most: the name, the newest figures, how much is done, what the diagnostics say.

import { element, find, fit, mark, reveal, say } from "./dom.js";
import * as words from "./words.js";

function hero({ run, learning, children, search, evaluation = null }) {
  const search_ = run.kind === "search";
  const there = children.filter((child) => child.state !== "away").length;
  const goal = run.goal === null ? "" : `, goal ${words.figure(run.goal)}`;
  const best = search?.best ?? null;
  return [
    search_
      ? [
          "best score",
          words.score(best?.score ?? learning.mean_return),
          best ? ` trial ${best.trial}` : "",
        ]
      : ["mean return", words.score(learning.mean_return), goal],
    ...(evaluation === null
      ? []
      : [["evaluated", words.score(evaluation.mean), ` ± ${words.figure(evaluation.std)}`]]),
    ["steps/s", words.count(learning.steps_per_second), ""],
    ["steps", words.brief(learning.steps), ""],
    ["episodes", words.count(learning.episodes), ""],
    search_
      ? ["reports", words.count(learning.update), ""]
      : ["exchanges", words.count(learning.update), " a child"],
    [
      search_ ? "nodes" : "children",
      words.count(there),
      there < children.length ? ` of ${words.count(children.length)}` : "",
    ],
  ];
}

function drawHero(document) {
  const list = find("hero");
  const pairs = hero(document);
  fit(list, pairs.length, () =>
    element("div", {}, element("dt"), element("dd", {}, element("b"), element("small"))),
  );
  pairs.forEach(([term, value, more], index) => {
    const [name, figure] = list.children[index].children;
    say(name, term);
    say(figure.firstChild, value);
    say(figure.lastChild, more);
  });
}

function drawProgress({ run }, elapsed) {
  const parts = [];
  if (run.share !== null) parts.push(words.percent(run.share));
  parts.push(words.duration(elapsed));
  if (run.left !== null && run.state !== "over")
    parts.push(`at most ${words.duration(run.left)} left`);
  if (run.state === "over") parts.push(`over: ${run.reason}`);
  if (run.state === "waiting") parts.push("waiting for children");
  reveal(find("progress"), true);
  const bar = find("bar");
  reveal(bar, run.share !== null);
  if (run.share !== null) mark(bar, "value", String(run.share));
  say(find("bar-text"), parts.join(" · "));
}

export function show(document, now) {
  const { run, learning } = document;
  reveal(find("standing"), true);
  say(find("title"), run.name);
  say(find("kind"), [run.environment, run.algorithm, run.backend].join(" · "));
  drawHero(document);
  drawProgress(document, run.elapsed + (run.state === "training" ? now - document.time : 0));
  const notes = find("notes");
  reveal(notes, run.notes.length > 0);
  const found = [...notes.children].map((note) => note.textContent);
  if (found.join("\n") !== run.notes.join("\n")) {
    notes.replaceChildren(...run.notes.map((text) => element("li", { text })));
  }
  window.document.title = `${words.score(learning.mean_return)} · ${run.name} · Genkidama`;
}
