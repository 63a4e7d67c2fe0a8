// The newest policy at play, beside the curve. A slider goes back to earlier versions. What plays is
// computed here: the parent only sends weights, now and then.

import { address, find, mark, reveal, say } from "./dom.js";
import { environment, known } from "./environments.js";
import { actor } from "./policy.js";
import * as words from "./words.js";

// Weights are asked for this often at most, and less often where many look.
const SECONDS = 5;
const VIEWERS_A_SECOND = 4;

// So many versions that were sent while the page was open can be gone back to.
const KEPT = 32;

const PAUSE_SECONDS = 0.7;
const MOST_STEPS_A_FRAME = 5;

const query = matchMedia("(prefers-reduced-motion: reduce)");

let asked = -Infinity;
// The version of the run when weights were asked for last.
let known_version = null;
let asking = false;
let unplayable = false;
let world = null;
let newest = null;
let checkpoints = [];
// By version: policies that were sent.
const seen = new Map();
// The policy that the slider stands at; null for the newest of each moment.
let chosen = null;

// The next frame that was asked for; 0 while nothing moves.
let pending = 0;
let visible = true;
let game = null;
let before = 0;

async function get(name) {
  const answer = await fetch(address(name), { cache: "no-store" });
  if (!answer.ok) throw new Error(answer.statusText);
  return answer.json();
}

function thin() {
  // Of neighbours that lie close together one goes, the oldest and the newest never.
  while (seen.size > KEPT) {
    const all = [...seen.keys()].sort((a, b) => a - b);
    const gaps = all.slice(2).map((version, i) => version - all[i]);
    seen.delete(all[1 + gaps.indexOf(Math.min(...gaps))]);
  }
}

const versions = () =>
  [...new Set([...checkpoints, ...seen.keys()])].filter(
    (version) => newest === null || version <= newest.version,
  ).sort((a, b) => a - b);

async function ask() {
  asking = true;
  try {
    const found = await get("policy");
    asked = performance.now() / 1000;
    checkpoints = found.checkpoints;
    if (found.version !== undefined) {
      world = found.problem ? null : environment(found.environment);
      unplayable = world === null;
    }
    if (world !== null && found.numbers) {
      newest = found;
      seen.set(found.version, found);
      thin();
      if (game === null) begin_game();
      else if (chosen === null) replace(found);
      slide();
      resume();
    }
  } catch {
    asked = performance.now() / 1000;
  }
  asking = false;
}

// The slider's last place is the newest version, whichever that is.
function slide() {
  const all = versions();
  const slider = find("play-version");
  const place = chosen === null ? all.length - 1 : all.indexOf(chosen.version);
  mark(slider, "max", String(Math.max(0, all.length - 1)));
  slider.value = String(place < 0 ? all.length - 1 : place);
  reveal(find("play-slide"), all.length > 1);
  spell(slider, all);
}

function spell(slider, all) {
  const last = Number(slider.value) >= all.length - 1;
  const text = last ? "newest" : `version ${words.count(all[slider.value])}`;
  mark(slider, "aria-valuetext", text);
  say(find("play-place"), text);
}

async function choose() {
  const slider = find("play-version");
  const all = versions();
  const version = all[slider.value];
  spell(slider, all);
  if (Number(slider.value) >= all.length - 1) {
    chosen = null;
  } else {
    let policy = seen.get(version) ?? null;
    try {
      policy ??= await get(`policy?version=${version}`);
    } catch {
      policy = { problem: "the parent does not answer" };
    }
    if (all[slider.value] !== version) return;
    if (policy.problem) {
      checkpoints = checkpoints.filter((one) => one !== version);
      say(find("play-label"), `version ${words.count(version)}: ${policy.problem}`);
      return slide();
    }
    chosen = policy;
  }
  begin_game();
  resume();
}

function begin_game() {
  const policy = chosen ?? newest;
  const state = world.reset(Math.random);
  game = { state, last: state, steps: 0, total: 0, wait: 0, behind: 0, over: false };
  game.first = policy.version;
  // Of its network, if it has one: newer weights go on from it, too.
  game.memory = new Float32Array(policy.memory);
  replace(policy);
}

// The newest weights take over in the middle of an episode.
function replace(policy) {
  game.policy = policy;
  game.act = actor(policy, world);
  tell();
}

function tell() {
  const { policy, first, steps, total } = game;
  const kind = policy.version === newest.version ? "the newest" : `newest ${words.count(newest.version)}`;
  say(
    find("play-label"),
    `version ${words.count(policy.version)} plays (${kind}) · ` +
      `step ${words.count(steps)} · return ${words.score(total)}` +
      (first === policy.version ? "" : `, begun by version ${words.count(first)}`),
  );
}

function step() {
  const { state, act } = game;
  const [next, reward, done] = world.step(state, act(world.observe(state), game.memory), Math.random);
  game.last = state;
  game.state = next;
  game.total += reward;
  game.steps += 1;
  game.over = done || game.steps >= world.longest;
  game.wait = PAUSE_SECONDS;
}

function between(share) {
  const { state, last } = game;
  if (!Array.isArray(state)) return state;
  const near = state.every((x, i) => Math.abs(x - last[i]) < 3);
  return near ? state.map((x, i) => last[i] + (x - last[i]) * share) : state;
}

function frame(now) {
  const seconds = Math.min(0.1, (now - before) / 1000);
  before = now;
  if (game.over) {
    game.wait -= seconds;
    if (game.wait <= 0) begin_game();
  } else {
    game.behind += seconds * world.rate;
    for (let i = 0; i < MOST_STEPS_A_FRAME && game.behind >= 1 && !game.over; i++) {
      step();
      game.behind -= 1;
    }
    game.behind = Math.min(game.behind, 1);
    tell();
  }
  world.draw(pen(), between(game.over ? 1 : game.behind));
  pending = requestAnimationFrame(frame);
}

const wanted = () => find("play-pause").getAttribute("aria-pressed") !== "true";

function resume() {
  const go = game !== null && visible && !document.hidden && wanted();
  if (go && !pending) {
    before = performance.now();
    pending = requestAnimationFrame(frame);
  } else if (!go && game !== null) {
    cancelAnimationFrame(pending);
    pending = 0;
    world.draw(pen(), game.state);
  }
}

// Draws in the units of an environment: the whole of its view, and as large as there is room.
function pen() {
  const canvas = find("play-canvas");
  const scale = devicePixelRatio;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`);
  const path = (points, close) => {
    context.beginPath();
    points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    if (close) context.closePath();
  };
  return {
    view(left, right, bottom, top) {
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.clearRect(0, 0, canvas.width, canvas.height);
      const unit = Math.min(canvas.width / (right - left), canvas.height / (top - bottom));
      const x = canvas.width / 2 - (unit * (left + right)) / 2;
      const y = canvas.height / 2 + (unit * (bottom + top)) / 2;
      context.setTransform(unit, 0, 0, -unit, x, y);
      context.lineCap = "round";
    },
    line(from, to, name, thick) {
      context.strokeStyle = colour(name);
      context.lineWidth = thick;
      path([from, to], false);
      context.stroke();
    },
    shape(points, name) {
      context.fillStyle = colour(name);
      path(points, true);
      context.fill();
    },
    box([x, y], width, height, angle, name) {
      const [sine, cosine] = [Math.sin(angle), Math.cos(angle)];
      const corners = [[-1, -1], [1, -1], [1, 1], [-1, 1]];
      const at = ([i, j]) => [
        x + (i * width * cosine - j * height * sine) / 2,
        y + (i * width * sine + j * height * cosine) / 2,
      ];
      this.shape(corners.map(at), name);
    },
    dot([x, y], radius, name) {
      context.fillStyle = colour(name);
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.fill();
    },
  };
}

export function begin() {
  const button = find("play-pause");
  const press = (paused) => {
    mark(button, "aria-pressed", String(paused));
    resume();
  };
  press(query.matches);
  button.addEventListener("click", () => press(wanted()));
  find("play-version").addEventListener("input", choose);
  document.addEventListener("visibilitychange", resume);
  new IntersectionObserver(([{ isIntersecting }]) => {
    visible = isIntersecting;
    resume();
  }).observe(find("play"));
  new MutationObserver(resume).observe(document.documentElement, {
    attributeFilter: ["data-theme"],
  });
}

function show_film(version) {
  const film = find("play-film");
  const source = `film?version=${version}`;
  if (film.getAttribute("src") !== source) film.setAttribute("src", source);
  say(find("play-label"), `a film of version ${words.count(version)}`);
}

export function show({ run, learning, page }) {
  const now = performance.now() / 1000;
  const rest = Math.max(SECONDS, (page?.viewers ?? 0) / VIEWERS_A_SECOND);
  const plays = run.kind === "plain" && known(run.environment) && !unplayable;
  const news = newest === null || known_version !== learning.version;
  if (plays && news && !asking && now - asked >= rest && !document.hidden) {
    known_version = learning.version;
    ask();
  }
  const film = run.film ?? null;
  const live = plays && game !== null;
  const filmed = !plays && film !== null;
  reveal(find("play"), live || filmed);
  reveal(find("play-canvas"), live);
  reveal(find("play-pause"), live);
  reveal(find("play-film"), filmed);
  if (!live) reveal(find("play-slide"), false);
  say(find("play-title"), live ? "Newest policy at play" : "Newest film");
  if (filmed) show_film(film);
  say(
    find("play-note"),
    live && world.approximate ? `Played in this browser by an approximation: ${world.approximate}.` : "",
  );
}
