// What the run's owner may press. The parent decides; this only asks, and says what it answered.

import { address, element, find, reveal, say } from "./dom.js";

const PLAIN = [
  ["checkpoint", "Checkpoint now", "writes the weights as they are"],
  ["extend", "More time", "makes each limit of the run longer by half"],
  ["film", "Film now", "writes a checkpoint, and a film of it"],
  ["stop", "Stop the run", "ends the run for all its children"],
];

// Asked once, when there is something to steer; empty until then, and for a viewer.
let owner = "";
let asked = false;
let children = null;
let admits = null;

async function ask(action, label, child = "") {
  const query = new URLSearchParams(child ? { action, child } : { action });
  say(find("controls-answer"), `${label} …`);
  let said;
  try {
    const answer = await fetch(address(`control?${query}`), { method: "POST" });
    said = answer.ok ? "done" : (await answer.text()).trim();
  } catch {
    said = "the parent does not answer";
  }
  say(find("controls-answer"), `${label}${child ? ` ${child}` : ""}: ${said}`);
}

// A button that ends something asks once more, by its own words.
function pressed(action, label, button) {
  if (action === "stop" && button.textContent === label) {
    say(button, "Stop it? Press again");
    setTimeout(() => say(button, label), 5000);
    return;
  }
  say(button, label);
  ask(action, label);
}

function fill(select, names) {
  const found = [...select.options].slice(1).map((option) => option.value);
  reveal(select, names.length > 0);
  if (found.join("\n") === names.join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(
    select.options[0],
    ...names.map((name) => element("option", { value: name, text: name })),
  );
  select.value = names.includes(chosen) ? chosen : "";
}

function chooser(action, label) {
  const select = element(
    "select",
    { "aria-label": label },
    element("option", { value: "", text: `${label} …` }),
  );
  const button = element("button", {
    type: "button",
    text: label,
    hidden: true,
    onclick: () => {
      ask(action, label, select.value);
      select.value = "";
      reveal(button, false);
    },
  });
  select.addEventListener("change", () => reveal(button, select.value !== ""));
  find("controls-buttons").append(select, button);
  return select;
}

async function know() {
  try {
    const answer = await fetch(address("control"), { cache: "no-store" });
    if (answer.ok) owner = (await answer.json()).owner;
  } catch {
    asked = false;
  }
}

export function begin() {
  const buttons = PLAIN.map(([action, label, title]) =>
    element("button", {
      type: "button",
      text: label,
      title,
      onclick: ({ currentTarget }) => pressed(action, label, currentTarget),
    }),
  );
  find("controls-buttons").append(...buttons);
  children = chooser("exclude", "Exclude a child");
  admits = chooser("admit", "Admit it again");
}

export function show({ run, children: rows }) {
  if (!asked && run.state !== "over") {
    asked = true;
    know();
  }
  reveal(find("controls"), owner !== "" && run.state !== "over");
  say(find("controls-owner"), `as ${owner}`);
  const { excluded = [] } = run;
  const there = rows.filter((row) => row.state !== "away" || !excluded.includes(row.name));
  fill(children, there.map((row) => row.name).sort());
  fill(admits, [...excluded].sort());
}
