// A browser that is a child: it acts in a worker, and pushes what it has seen. It speaks the protocol
// of docs/reference/protocol.md as any child.

import { facts, find, mark, say } from "./dom.js";
import { decode, encode } from "./messages.js";
import * as words from "./words.js";

const PROTOCOL = 2;
const FIRST_WAIT = 0.5;
const LONGEST_WAIT = 30;

// Seconds without an answer after which a connection is given up.
const SILENCE = 60;

// The steps of a push where the parent leaves them to the child.
const STEPS = 256;

// Below this charge it rests, unless it is plugged in.
const LOW = 0.2;

// #NAME:TOKEN, which no server is sent; * is any name.
const [said, token] = decodeURIComponent(location.hash.slice(1)).split(":");
const given = said === "*" ? "" : said;
const word = () => crypto.getRandomValues(new Uint32Array(2)).join("").slice(0, 12);
const session = word();
let name = "";

// Takes a name, which a page that is loaded again has, too.
function call(text) {
  name = text;
  sessionStorage.setItem("name", name);
}
call(given || (sessionStorage.getItem("name") ?? `browser-${word()}`));

const worker = new Worker("static/acting.js", { type: "module" });
let socket = null;
let wait = FIRST_WAIT;
let answer = null;
let over = "";
let weights = null;
let version = 0;
let steps = STEPS;
// What the worker has collected, and what was pushed without an answer so far.
let block = null;
let sent = null;
let experiment = "";
let sequence = 0;
let battery = null;
let paused = false;
const done = { steps: 0, episodes: 0, pushes: 0, last: null };

function status(text) {
  say(find("state"), text);
}

function show() {
  facts(find("done"), [
    ["name", name],
    ["steps", words.count(done.steps)],
    ["episodes", words.count(done.episodes)],
    ["last return", words.score(done.last)],
    ["exchanges", words.count(done.pushes)],
    ["version", words.count(version)],
  ]);
}

const resting = () => {
  if (paused) return "paused by you";
  if (document.hidden) return "rests while this page is not seen";
  if (battery && !battery.charging && battery.level < LOW) return "rests: the battery is low";
  return "";
};

const worked = (message) =>
  new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = ({ message }) => reject(Object.assign(new Error(message), { final: true }));
    worker.postMessage(message);
  });

// One request, and the reply to it.
function ask(message, vector = null) {
  return new Promise((resolve, reject) => {
    // What is sent on a closed connection is dropped without a word.
    if (socket.readyState !== WebSocket.OPEN) return reject(new Error("the connection is lost"));
    const late = setTimeout(() => answer?.(null), 1000 * SILENCE);
    answer = (found) => {
      clearTimeout(late);
      answer = null;
      if (found === null) return reject(new Error("the connection is lost"));
      const [reply, sent_vector] = found;
      if (reply.type === "refusal") return reject(Object.assign(new Error(reply.reason), reply));
      return resolve([reply, sent_vector]);
    };
    socket.send(encode(message, vector));
  });
}

function open() {
  return new Promise((resolve, reject) => {
    const target = new URL("./", location.href.split("#")[0]);
    target.protocol = target.protocol.replace("http", "ws");
    socket = new WebSocket(target, token ? ["genkidama", `token.${token}`] : ["genkidama"]);
    socket.binaryType = "arraybuffer";
    socket.onopen = resolve;
    socket.onmessage = ({ data }) => answer?.(decode(data));
    socket.onclose = ({ code, reason }) => {
      if (code === 1000) over ||= reason || "the run is over";
      answer?.(null);
      reject(new Error("the parent does not answer, or does not admit this browser"));
    };
  });
}

function take([reply, vector]) {
  ({ version } = reply);
  steps = reply.steps || STEPS;
  over = reply.stop || "";
  if (vector !== null) weights = vector;
}

async function push() {
  if (sent === null) {
    sequence += 1;
    sent = block;
    block = null;
  }
  const { rows, steps: made, returns } = sent;
  const message = { type: "push", version, sequence, kind: "experience", steps: made, returns };
  take(await ask(message, rows));
  done.steps += made;
  done.episodes += returns.length;
  done.pushes += 1;
  done.last = returns.at(-1) ?? done.last;
  sent = null;
}

async function converse() {
  await open();
  const hello = { type: "hello", protocol: PROTOCOL, name, session, software: "browser" };
  const [welcome] = await ask(hello);
  if (welcome.stop) {
    over = welcome.stop;
    return;
  }
  const now = JSON.stringify(welcome.experiment);
  if (now !== experiment) block = sent = null; // of another experiment
  experiment = now;
  const { why, signature } = await worked({ experiment: welcome.experiment });
  if (why) {
    await ask({ type: "leave", reason: why });
    throw Object.assign(new Error(why), { final: true });
  }
  take(await ask({ type: "join", signature, cores: 1 }));
  wait = FIRST_WAIT;
  say(find("title"), welcome.run);
  say(find("kind"), welcome.experiment.environment.id);
  while (!over) {
    const why_not = resting();
    status(why_not || "acts");
    mark(find("connection"), "data-state", why_not ? "connecting" : "live");
    show();
    if (why_not) {
      await new Promise((resolve) => setTimeout(resolve, 300));
      continue;
    }
    if (block === null && sent === null) {
      ({ block } = await worked({ weights, collect: steps }));
    }
    await push();
  }
  await ask({ type: "leave", reason: over });
}

async function run() {
  while (!over) {
    try {
      await converse();
    } catch (error) {
      if (over) break;
      // Without the code 1000 the parent waits for it, as it has not heard of an end.
      socket?.close();
      sent = error.code && error.code !== "base" ? null : sent;
      if (error.final || ["version", "malformed", "unknown", "order", "length", "experience",
        "part", "role", "excluded"].includes(error.code)) {
        over = error.message;
        break;
      }
      if (error.code === "name" && !given) call(`browser-${word()}`);
      status(`${error.message}; trying again`);
      mark(find("connection"), "data-state", "lost");
      await new Promise((resolve) => setTimeout(resolve, 1000 * wait * Math.random()));
      wait = Math.min(LONGEST_WAIT, 2 * wait);
    }
  }
  socket?.close(1000);
  worker.terminate();
  mark(find("connection"), "data-state", "finished");
  status(`over: ${over}`);
  show();
}

// The screen stays on while it acts, where the browser allows that.
async function stay_awake() {
  try {
    if (!document.hidden && !paused) await navigator.wakeLock?.request("screen");
  } catch {
    // it may be forbidden, or the battery low
  }
}

navigator.getBattery?.().then((found) => (battery = found));
document.addEventListener("visibilitychange", stay_awake);
find("pause").addEventListener("click", () => {
  paused = !paused;
  mark(find("pause"), "aria-pressed", String(paused));
});
stay_awake();
run();
