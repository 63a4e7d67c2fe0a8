// From values to places, and the values that an axis names. Pure.

const ROUND = [1, 2, 2.5, 5, 10];
const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200];

export function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : null;
}

// The extent without the outliers: the values that lie farther than three times the distance between
// the 5th and the 95th percentile from both of them.
export function usual(values) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  if (sorted.length < 20) return extent(sorted);
  const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
  const [low, high] = [at(0.05), at(0.95)];
  const far = 3 * (high - low);
  return extent(sorted.filter((value) => value >= low - far && value <= high + far));
}

// A round step so that about `most` of them cover the span.
export function step(span, most) {
  const raw = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * ROUND.find((factor) => factor * power >= raw * 0.999);
}

export function timeStep(span, most) {
  return TIMES.find((time) => time * most >= span) ?? 86400 * step(span / 86400, most);
}

export function ticks(low, high, gap) {
  const found = [];
  for (let index = Math.ceil(low / gap - 1e-9); index * gap <= high + gap * 1e-9; index += 1) {
    found.push(index * gap);
  }
  return found;
}

// By names, in which numbers count as numbers.
export const byName = new Intl.Collator("en", { numeric: true }).compare;

// Values of a column in their order, +1 or −1; nothing comes last in both.
export function compare(a, b, direction) {
  const [none, other] = [a === null || a === undefined, b === null || b === undefined];
  if (none || other) return none - other;
  const numbers = [a, b].every((one) => typeof one === "number" || typeof one === "boolean");
  const text = (one) => (typeof one === "object" ? JSON.stringify(one) : String(one));
  return direction * (numbers ? a - b : byName(text(a), text(b)));
}

// A range that is never empty, with a little air on both sides.
export function roomy([low, high], air = 0.06) {
  const span = high - low || Math.abs(high) || 1;
  return [low - air * span, high + air * span];
}

export function linear([low, high], from, to) {
  const factor = (to - from) / (high - low || 1);
  return (value) => from + (value - low) * factor;
}

// Whether values spread over so many sizes that only a logarithm tells them apart.
export function spread(values) {
  const range = extent(values);
  return range !== null && range[0] > 0 && range[1] / range[0] >= 20;
}

// At most so many of the points, evenly chosen, the first and the last among them.
export function evenly(points, most) {
  if (points.length <= most) return points;
  return Array.from(
    { length: most },
    (_, index) => points[Math.round((index * (points.length - 1)) / (most - 1))],
  );
}

// Of points in the order of x: the index of the one that lies nearest.
export function nearest(points, x) {
  let [low, high] = [0, points.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - points[low - 1][0] < points[low][0] - x ? low - 1 : low;
}
