// A policy of the network "actor-critic", by the arrays that the parent sends: from an observation
// to the most probable action. It computes in float32, as NumPy does.

const ACTIVATIONS = {
  tanh: Math.tanh,
  relu: (x) => Math.max(x, 0),
  elu: (x) => (x > 0 ? x : Math.expm1(x)),
  silu: (x) => x / (1 + Math.exp(-x)),
};

// Of normalized observations, in standard deviations; genkidama.learning.model has all.
const CUT = 10;
const EPSILON = 1e-8;
// Of the mean's square: a deviation is a thousandth of the mean at least.
const LEAST_VARIANCE = 1e-6;

// The arrays in a vector, by name.
export function parts(entries, vector) {
  let taken = 0;
  return Object.fromEntries(
    entries.map(([name, shape]) => {
      const size = shape.reduce((product, length) => product * length, 1);
      return [name, vector.subarray(taken, (taken += size))];
    }),
  );
}

function unpack({ arrays, numbers }) {
  const bytes = Uint8Array.from(atob(numbers), (letter) => letter.charCodeAt(0));
  return parts(arrays, new Float32Array(bytes.buffer));
}

// Counts, sums and sums of squares: mean and deviation.
function moments(statistics) {
  const size = (statistics.length - 1) / 2;
  const count = statistics[0];
  const sums = statistics.subarray(1, 1 + size);
  if (count < 2) return [new Float32Array(size), new Float32Array(size).fill(1)];
  const means = Float64Array.from(sums, (sum) => sum / count);
  const squares = statistics.subarray(1 + size);
  const variance = means.map((mean, i) =>
    Math.max(squares[i] / count - mean * mean, LEAST_VARIANCE * mean * mean),
  );
  return [Float32Array.from(means), Float32Array.from(variance, (x) => Math.sqrt(x + EPSILON))];
}

// y = Wx + b, with W row by row.
function forward([weight, bias], x) {
  return bias.map((sum, row) => {
    for (let i = 0; i < x.length; i++) sum += weight[row * x.length + i] * x[i];
    return sum;
  });
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

// The state of a GRU after x, in the place of the one before; genkidama.learning.recurrence has it.
function remember([seeing, knowing], x, state) {
  const [seen, known, size] = [forward(seeing, x), forward(knowing, state), state.length];
  for (let i = 0; i < size; i++) {
    const reset = sigmoid(seen[i] + known[i]);
    const update = sigmoid(seen[size + i] + known[size + i]);
    const fresh = Math.tanh(seen[2 * size + i] + reset * known[2 * size + i]);
    state[i] = fresh + update * (state[i] - fresh);
  }
  return state;
}

// A function from an observation to all that the network of these arrays, by their names, gives.
// With a memory its state is another argument, a Float32Array of zeros when an episode begins.
export function layers(parts, name) {
  const statistics = parts["statistics.observations"];
  const scale = statistics ? moments(statistics) : null;
  const activation = ACTIVATIONS[name];
  const stack = ["body.", "policy."].flatMap((part) =>
    Object.keys(parts)
      .filter((name) => name.startsWith(part) && name.endsWith("weight"))
      .map((name) => [parts[name], parts[name.replace("weight", "bias")]]),
  );
  const gru = ["ih", "hh"].map((kind) => [parts[`memory.weight_${kind}_l0`], parts[`memory.bias_${kind}_l0`]]);
  const remembers = gru[0][0] !== undefined;
  return (observation, state) => {
    let x = observation;
    if (scale) {
      // The moments of a state stand before those of what is seen, and are not used.
      const [means, deviations] = scale.map((part) => part.subarray(part.length - x.length));
      x = x.map((value, i) => Math.min(Math.max((value - means[i]) / deviations[i], -CUT), CUT));
    }
    stack.forEach((layer, number) => {
      if (remembers && number === stack.length - 1) x = remember(gru, x, state);
      x = forward(layer, x);
      if (number < stack.length - 1) x = x.map(activation);
    });
    return x;
  };
}

// The same of a policy as the parent sends it.
export const network = (policy) => layers(unpack(policy), policy.activation);

// A function from an observation to an action of this environment. Behind means there may be
// deviations; a policy that squashes reaches the bounds by tanh.
export function actor(policy, { choices, low, high }) {
  const outputs = network(policy);
  return (observation, state) => {
    const y = outputs(observation, state);
    if (choices) return y.reduce((best, value, i) => (value > y[best] ? i : best), 0);
    return y.subarray(0, low.length).map((mean, i) => {
      const [centre, reach] = [(high[i] + low[i]) / 2, (high[i] - low[i]) / 2];
      const value = policy.squashes ? centre + reach * Math.tanh(mean) : mean;
      return Math.min(Math.max(value, low[i]), high[i]);
    });
  };
}
