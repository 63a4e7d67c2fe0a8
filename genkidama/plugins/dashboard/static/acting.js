// A worker that acts for a browser child: rows of experience, as docs/reference/protocol.md has them, by the
// policy that it was sent last.

import { environment } from "./environments.js";
import { layers, parts } from "./policy.js";

const LOG_2PI = Math.log(2 * Math.PI);

// Why this browser cannot act in an experiment; empty if it can.
export function problem({ environment: settings, network, algorithm, parent }) {
  if (parent.rule !== "experience") return "the parent's rule takes no experience";
  const world = environment(settings_of(settings));
  if (world === null) return `${settings.id}: not played by a browser`;
  if (world.approximate) return `${settings.id}: only approximated by a browser, so not learned from`;
  if (settings.period) return "environments on a wall clock are not played by a browser";
  if (network.name !== "actor-critic") return "a network of its own is not computed by a browser";
  if (network.sde_steps) return "gSDE's noise is not drawn by a browser";
  if (!["a3c", "ppo"].includes(algorithm.name))
    return `${algorithm.name}: its actions are not drawn by a browser`;
  return "";
}

const settings_of = ({ id, options = {}, wrappers = [] }) => ({ id, options, wrappers });

// Names and shapes of the network's parts, by "The built-in networks" of the protocol.
export function signature({ environment: settings, network }) {
  const world = environment(settings_of(settings));
  const inputs = world.observe(world.reset(Math.random)).length;
  const outputs = world.choices || world.low.length;
  const entries = world.choices ? [] : [["log_deviation", [outputs]]];
  const stack = (name, widths) => {
    widths.slice(1).forEach((width, i) => {
      entries.push([`${name}.${2 * i}.weight`, [width, widths[i]]]);
      entries.push([`${name}.${2 * i}.bias`, [width]]);
    });
  };
  const widths = [inputs, ...network.hidden];
  const memory = network.memory || 0;
  const last = memory || widths.at(-1);
  if (network.shared || memory) {
    stack("body", widths);
    if (memory) {
      entries.push(["memory.weight_ih_l0", [3 * memory, widths.at(-1)]]);
      entries.push(["memory.weight_hh_l0", [3 * memory, memory]]);
      entries.push(["memory.bias_ih_l0", [3 * memory]], ["memory.bias_hh_l0", [3 * memory]]);
    }
    stack("policy", [last, outputs]);
    stack("value", [last, 1]);
  } else {
    stack("policy", [...widths, outputs]);
    stack("value", [...widths, 1]);
  }
  const counted = memory + inputs;
  if (settings.normalize_observations) entries.push(["statistics.observations", [1 + 2 * counted]]);
  if (settings.normalize_rewards) entries.push(["statistics.returns", [3]]);
  return entries;
}

// Standard normal numbers, by Box and Muller.
const normal = (random) =>
  Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

// An action's columns, what the environment takes, and its log-probability.
export function draw(outputs, deviations, { choices, low, high }, random) {
  if (choices) {
    const most = Math.max(...outputs);
    const weights = Array.from(outputs, (x) => Math.exp(x - most));
    const sum = weights.reduce((a, b) => a + b, 0);
    let left = random() * sum;
    let action = weights.findIndex((weight) => (left -= weight) < 0);
    if (action < 0) action = choices - 1;
    return [[action], action, Math.min(0, Math.log(weights[action] / sum))];
  }
  let log = 0;
  const drawn = outputs.map((mean, i) => {
    const noise = normal(random);
    log -= 0.5 * noise * noise + deviations[i] + 0.5 * LOG_2PI;
    return mean + Math.exp(deviations[i]) * noise;
  });
  return [drawn, drawn.map((x, i) => Math.min(Math.max(x, low[i]), high[i])), log];
}

// Acts in one environment; episodes go on from one block to the next.
export class Actor {
  constructor(experiment, random = Math.random) {
    this.random = random;
    this.entries = signature(experiment);
    this.world = environment(settings_of(experiment.environment));
    this.activation = experiment.network.activation;
    this.units = experiment.network.memory || 0;
    this.gamma = experiment.environment.normalize_rewards ? experiment.algorithm.gamma : null;
    this.begin();
  }

  begin() {
    this.state = this.world.reset(this.random);
    this.memory = new Float32Array(this.units);
    this.steps = 0;
    this.total = 0;
    this.discounted = 0;
  }

  take(vector) {
    const found = parts(this.entries, vector);
    this.outputs = layers(found, this.activation);
    this.deviations = found.log_deviation;
  }

  // What a row begins with: the state of the network's memory, and what is seen.
  seen(state) {
    return [...this.memory, ...this.world.observe(state)];
  }

  // Rows of so many steps, and the returns of the episodes that ended among them.
  collect(steps) {
    const { world, random } = this;
    const rows = [];
    const stops = [];
    const returns = [];
    for (let i = 0; i < steps; i++) {
      const seen = this.seen(this.state);
      const outputs = this.outputs(world.observe(this.state), this.memory);
      const [columns, action, log] = draw(outputs, this.deviations, world, random);
      const [next, reward, terminated] = world.step(this.state, action, random);
      this.state = next;
      this.steps += 1;
      this.total += reward;
      const truncated = !terminated && this.steps >= world.longest;
      const cut = !terminated && (truncated || i === steps - 1);
      const row = [...seen, ...columns, reward, +terminated, +truncated, log, 1];
      if (this.gamma !== null) row.push((this.discounted = this.gamma * this.discounted + reward));
      if (cut) stops.push([i, this.seen(next)]);
      rows.push(row);
      if (terminated || truncated) {
        returns.push(this.total);
        this.begin();
      }
    }
    const width = rows[0].length;
    const found = new Float32Array((steps + stops.length) * width);
    rows.forEach((row, i) => found.set(row, i * width));
    const following = width - (this.gamma === null ? 1 : 2);
    stops.forEach(([i, seen], j) => {
      found[i * width + following] = steps + j - i;
      found.set(seen, (steps + j) * width);
    });
    return { rows: found, steps, returns };
  }
}

let actor = null;

// In a worker.
if (typeof WorkerGlobalScope !== "undefined") {
  onmessage = ({ data }) => {
    if (data.experiment) {
      const why = problem(data.experiment);
      if (!why) actor = new Actor(data.experiment);
      postMessage({ why, signature: why ? [] : actor.entries });
    }
    if (data.weights) actor.take(data.weights);
    if (data.collect) {
      const block = actor.collect(data.collect);
      postMessage({ block }, [block.rows.buffer]);
    }
  };
}
