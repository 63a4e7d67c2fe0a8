// Numbers, times and names as a person reads them. Pure.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en-US", {
  minimumFractionDigits: 1,
  maximumFractionDigits: 1,
});
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const NOTHING = "–";
const MINUS = "−";

const known = (value) => typeof value === "number" && Number.isFinite(value);
const signed = (text) => text.replaceAll("-", MINUS);

export const count = (value) => (known(value) ? signed(whole.format(value)) : NOTHING);
export const score = (value) => (known(value) ? signed(tenth.format(value)) : NOTHING);
export const brief = (value) => (known(value) ? signed(short.format(value)) : NOTHING);
// A value on an axis, with all the digits of a multiple of the axis' gap.
export const tick = (value, gap) =>
  signed(
    (value || 0).toLocaleString("en-US", {
      notation: gap < 1000 ? "standard" : "compact",
      maximumSignificantDigits: 12,
    }),
  );
export const percent = (share) => (known(share) ? `${Math.floor(100 * share)}%` : NOTHING);

// Any measure: three digits that count, or as many as tell it from 1, and no more than it needs.
export function figure(value) {
  if (!known(value)) return NOTHING;
  const size = Math.abs(value);
  if (size >= 100 || value === 0) return count(value);
  if (size < 0.0001) return signed(value.toExponential(1));
  let digits = 3;
  while (value !== 1 && Number(value.toPrecision(digits)) === 1) digits += 1;
  return signed(String(Number(value.toPrecision(digits))));
}

// A setting's value, which a trial may lack: a number as figures are, anything else as TOML would have
// it, nearly.
export const setting = (value = null) =>
  value === null || known(value) ? figure(value) : typeof value === "string" ? value : JSON.stringify(value);

// 1:40, or 2:03:04 from an hour on.
export function duration(seconds) {
  if (!known(seconds)) return NOTHING;
  const all = Math.max(0, Math.floor(seconds));
  const two = (value) => String(value).padStart(2, "0");
  const [hours, minutes] = [Math.floor(all / 3600), Math.floor(all / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(all % 60)}` : `${minutes}:${two(all % 60)}`;
}

// How long ago, as short as it can be said.
export function ago(seconds) {
  if (!known(seconds)) return NOTHING;
  if (seconds < 1.95) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function bytes(value) {
  if (!known(value)) return NOTHING;
  for (const [size, unit] of [
    [1e9, "GB"],
    [1e6, "MB"],
    [1e3, "kB"],
  ]) {
    // Two figures at least, and no more than a narrow column has room for.
    if (value >= 10 * size) return `${Math.round(value / size)} ${unit}`;
    if (value >= size) return `${(value / size).toFixed(1)} ${unit}`;
  }
  return `${value} B`;
}

// With as many decimals everywhere, so that figures of a column stand below one another.
export const fixed = (value, decimals) =>
  known(value) ? signed(value.toFixed(decimals)) : NOTHING;

export const milliseconds = (seconds) =>
  known(seconds) ? `${fixed(1000 * seconds, seconds < 0.1 ? 1 : 0)} ms` : NOTHING;

export const many = (value, one, more = `${one}s`) => `${count(value)} ${value === 1 ? one : more}`;

// A moment, with its date unless that is today's.
export function clock(time) {
  if (!known(time)) return NOTHING;
  const at = new Date(1000 * time);
  const dateStyle = at.toDateString() === new Date().toDateString() ? undefined : "medium";
  return at.toLocaleString("en-GB", { dateStyle, timeStyle: "medium" });
}

const NAMES = {
  approximate_kl: "KL",
  kl: "KL of children",
  too_old: "dropped as too old",
  too_many: "dropped as too many",
  clip_fraction: "clipped",
  pps: "predictions/s",
  tps: "rollouts trained/s",
  td_error: "TD error",
  q_mean: "mean Q",
  celsius: "temperature",
  megahertz: "clock",
  wifi_dbm: "Wi-Fi signal",
  free_megabytes: "free memory",
  watts: "power",
};

const UNITS = {
  entropy: " nats",
  celsius: " °C",
  megahertz: " MHz",
  wifi_dbm: " dBm",
  free_megabytes: " MB",
  watts: " W",
};

// In short; docs/notes/diagnostics.md says more.
const MEANINGS = {
  loss: "what an update minimizes",
  policy_loss: "mean of −log π·A, or of the clipped −ρ·A",
  value_loss: "mean of (R − V)²",
  entropy: "how undecided the policy is; near 0 it no longer explores",
  approximate_kl: "how far the policy has gone from the one that acted; 0.002 to 0.03 is healthy",
  kl: "how far the policy that acted lay from the learner's before it learned",
  clip_fraction: "for how many samples PPO clips the ratio; 2% to 30% is healthy",
  explained_variance: "how much of the returns the values explain: 1 is all, below 0 is worse than their mean",
  td_error: "mean distance of Q from its target",
  q_mean: "mean of Q over the samples",
  gradient_norm: "mean norm of gradients, before it is limited",
  learning_rate: "that of now, as the schedule has it",
  epsilon: "share of random actions",
  episode_length: "mean number of steps of the episodes that ended",
  lag: "updates between acting and learning",
  updates_per_step: "how often a learner with a replay learns for each new step",
  replay: "steps that a learner beside the parent keeps",
};

// A measure's name as people write it.
export const named = (name) => NAMES[name] ?? name.replaceAll("_", " ");

export const meant = (name) => MEANINGS[name] ?? "";

// A measure's value with its unit, if it has one.
export function measured(name, value, unit = true) {
  if (!known(value)) return NOTHING;
  if (name === "clip_fraction") return `${figure(100 * value)}%`;
  return `${figure(value)}${unit ? (UNITS[name] ?? "") : ""}`;
}

const REFUSALS = {
  base: "a difference to unknown weights",
  experience: "rows that make no sense",
  finite: "numbers that are not finite",
  flood: "pings or fragments without end",
  full: "too many children",
  length: "a vector of another length",
  malformed: "no message of the protocol",
  name: "a name that is taken",
  order: "a message at the wrong time",
  part: "another part of the parent",
  role: "a role that is not to be had",
  signature: "another network",
  silent: "too long without a word",
  token: "a wrong token, or none",
  excluded: "an excluded child",
  trial: "a trial of another child",
  unknown: "a message of an unknown kind",
  version: "another protocol",
};

// A refusal's code, with what it means where that is known.
export const refused = (code) => REFUSALS[code] ?? "";
