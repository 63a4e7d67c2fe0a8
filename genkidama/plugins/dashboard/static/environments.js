// Environments that the page plays by itself. Those of classic control compute what Gymnasium's do,
// in its order; the lander is an approximation without Box2D.
//
// Each has: `rate`, steps a second; `longest`, steps of an episode at most; `choices` of a discrete
// action, or `low` and `high`; `reset(random)`, a state; `step(state, action, random)`, [state,
// reward, terminated]; `observe(state)`, a Float32Array; and `draw(pen, state)`. A state is an
// object or an array of numbers that is never changed.

const { PI, abs, cos, fround, hypot, max, min, sign, sin } = Math;

const clip = (x, low, high) => min(max(x, low), high);
const between = (random, low, high) => low + (high - low) * random();
const many = (count, random, low, high) =>
  Array.from({ length: count }, () => between(random, low, high));

const cartpole = {
  rate: 50,
  longest: 500,
  choices: 2,
  reset: (random) => many(4, random, -0.05, 0.05),
  observe: (state) => Float32Array.from(state),
  step([x, speed, angle, turn], action) {
    const force = action === 1 ? 10 : -10;
    const pull = (force + 0.05 * (turn * turn) * sin(angle)) / 1.1;
    const bend =
      (9.8 * sin(angle) - cos(angle) * pull) / (0.5 * (4 / 3 - (0.1 * cos(angle) ** 2) / 1.1));
    const push = pull - (0.05 * bend * cos(angle)) / 1.1;
    const next = [x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * bend];
    return [next, 1, abs(next[0]) > 2.4 || abs(next[2]) > (12 * 2 * PI) / 360];
  },
  draw(pen, [x, , angle]) {
    pen.view(-2.6, 2.6, -0.6, 1.6);
    pen.line([-2.4, 0], [2.4, 0], "line", 0.02);
    pen.box([x, 0], 0.5, 0.3, 0, "ink");
    pen.line([x, 0.05], [x + sin(angle), 0.05 + cos(angle)], "accent", 0.1);
  },
};

const wrap = (x) => {
  while (x > PI) x -= 2 * PI;
  while (x < -PI) x += 2 * PI;
  return x;
};

function bends([first, second, speed, turn], torque) {
  const d1 = 0.25 + (1 + 0.25 + cos(second)) + 2;
  const d2 = 0.25 + 0.5 * cos(second) + 1;
  const phi2 = 0.5 * 9.8 * cos(first + second - PI / 2);
  const phi1 =
    -0.5 * turn ** 2 * sin(second) -
    turn * speed * sin(second) +
    1.5 * 9.8 * cos(first - PI / 2) +
    phi2;
  const bend =
    (torque + (d2 / d1) * phi1 - 0.5 * speed ** 2 * sin(second) - phi2) / (1.25 - d2 ** 2 / d1);
  return [speed, turn, -(d2 * bend + phi1) / d1, bend];
}

const acrobot = {
  rate: 15,
  longest: 500,
  choices: 3,
  reset: (random) => many(4, random, -0.1, 0.1).map(fround),
  observe: ([first, second, speed, turn]) =>
    Float32Array.of(cos(first), sin(first), cos(second), sin(second), speed, turn),
  step(state, action) {
    const torque = action - 1;
    const after = (slope, seconds) => state.map((x, i) => x + seconds * slope[i]);
    const k1 = bends(state, torque);
    const k2 = bends(after(k1, 0.1), torque);
    const k3 = bends(after(k2, 0.1), torque);
    const k4 = bends(after(k3, 0.2), torque);
    const next = state.map((x, i) => x + (0.2 / 6) * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]));
    next[0] = wrap(next[0]);
    next[1] = wrap(next[1]);
    next[2] = clip(next[2], -4 * PI, 4 * PI);
    next[3] = clip(next[3], -9 * PI, 9 * PI);
    const done = -cos(next[0]) - cos(next[1] + next[0]) > 1;
    return [next, done ? 0 : -1, done];
  },
  draw(pen, [first, second]) {
    pen.view(-2.2, 2.2, -2.2, 2.2);
    const elbow = [sin(first), -cos(first)];
    const tip = [elbow[0] + sin(first + second), elbow[1] - cos(first + second)];
    pen.line([-2.2, 1], [2.2, 1], "line", 0.03);
    pen.line([0, 0], elbow, "accent", 0.16);
    pen.line(elbow, tip, "accent", 0.16);
    for (const joint of [[0, 0], elbow]) pen.dot(joint, 0.1, "ink");
  },
};

const pendulum = {
  rate: 20,
  longest: 200,
  low: [-2],
  high: [2],
  reset: (random) => [between(random, -PI, PI), between(random, -1, 1)],
  observe: ([angle, turn]) => Float32Array.of(cos(angle), sin(angle), turn),
  step([angle, turn], action) {
    const torque = clip(fround(action[0]), -2, 2);
    const shown = ((((angle + PI) % (2 * PI)) + 2 * PI) % (2 * PI)) - PI;
    const cost = shown ** 2 + 0.1 * turn ** 2 + 0.001 * torque ** 2;
    const faster = clip(turn + (15 * sin(angle) + fround(3 * torque)) * 0.05, -8, 8);
    return [[angle + faster * 0.05, faster], -cost, false];
  },
  draw(pen, [angle]) {
    pen.view(-1.4, 1.4, -1.4, 1.4);
    pen.line([0, 0], [-sin(angle), cos(angle)], "accent", 0.18);
    pen.dot([0, 0], 0.06, "ink");
  },
};

const height = (x) => sin(3 * x) * 0.45 + 0.55;

function drawHill(pen, [position], goal) {
  pen.view(-1.25, 0.65, -0.1, 1.3);
  const hill = Array.from({ length: 100 }, (_, i) => -1.2 + (1.8 * i) / 99);
  hill.slice(1).forEach((x, i) => {
    pen.line([hill[i], height(hill[i])], [x, height(x)], "soft", 0.008);
  });
  pen.line([goal, height(goal)], [goal, height(goal) + 0.15], "ink", 0.008);
  pen.box([goal + 0.03, height(goal) + 0.13], 0.06, 0.04, 0, "warn");
  pen.box([position, height(position) + 0.035], 0.12, 0.06, Math.atan(1.35 * cos(3 * position)), "accent");
}

const mountaincar = {
  rate: 30,
  longest: 200,
  choices: 3,
  reset: (random) => [between(random, -0.6, -0.4), 0],
  observe: (state) => Float32Array.from(state),
  step([before, speed], action) {
    speed = clip(speed + (action - 1) * 0.001 + cos(3 * before) * -0.0025, -0.07, 0.07);
    const position = clip(before + speed, -1.2, 0.6);
    if (position === -1.2 && speed < 0) speed = 0;
    return [[position, speed], -1, position >= 0.5 && speed >= 0];
  },
  draw: (pen, state) => drawHill(pen, state, 0.5),
};

// Its state is float32 from the first step on.
const mountaincarcontinuous = {
  rate: 30,
  longest: 999,
  low: [-1],
  high: [1],
  reset: mountaincar.reset,
  observe: mountaincar.observe,
  step([before, speed], action) {
    const force = clip(action[0], -1, 1);
    speed = clip(speed + (force * 0.0015 - 0.0025 * cos(3 * before)), -0.07, 0.07);
    const position = clip(before + speed, -1.2, 0.6);
    if (position === -1.2 && speed < 0) speed = 0;
    const done = position >= 0.45 && speed >= 0;
    return [[fround(position), fround(speed)], (done ? 100 : 0) - 0.1 * action[0] ** 2, done];
  },
  draw: (pen, state) => drawHill(pen, state, 0.45),
};

// examples/rotary, on a clock that keeps time.
const [A, B, C, D, G] = [
  (0.095 * 0.085 ** 2) / 3 + 0.024 * 0.085 ** 2,
  (0.024 * 0.129 ** 2) / 4,
  (0.024 * 0.129 * 0.085) / 2,
  (0.024 * 0.129 ** 2) / 3,
  (0.024 * 0.129 * 9.81) / 2,
];

const rotary = {
  rate: 50,
  longest: 500,
  low: [-1],
  high: [1],
  reset: (random) => [...many(2, random, -0.1, 0.1), 0, 0, 0],
  observe: ([arm, rod, armSpeed, rodSpeed, action]) =>
    Float32Array.of(arm, 4 * rod, armSpeed / 5, rodSpeed / 5, action).map((x) => clip(x, -5, 5)),
  step([arm, rod, armSpeed, rodSpeed, before], action) {
    for (let i = 0; i < 10; i++) {
      const [sine, cosine] = [sin(rod), cos(rod)];
      const current = (6 * before - 0.042 * armSpeed) / 8.4;
      let onArm = 0.042 * current - 0.0015 * armSpeed;
      onArm += C * sine * rodSpeed ** 2;
      onArm -= 2 * B * sine * cosine * armSpeed * rodSpeed;
      let onRod = G * sine - 0.0005 * rodSpeed;
      onRod += B * sine * cosine * armSpeed ** 2;
      const inertia = A + B * sine * sine;
      const coupling = C * cosine;
      const determinant = inertia * D - coupling * coupling;
      armSpeed += (0.002 * (D * onArm - coupling * onRod)) / determinant;
      rodSpeed += (0.002 * (inertia * onRod - coupling * onArm)) / determinant;
      arm += 0.002 * armSpeed;
      rod += 0.002 * rodSpeed;
    }
    const next = [arm, rod, armSpeed, rodSpeed, clip(fround(action[0]), -1, 1)];
    return [next, 1, abs(rod) > 0.5 || abs(arm) > 2];
  },
  // From above and in front: the arm's end, and the rod that leans across it.
  draw(pen, [arm, rod]) {
    pen.view(-1.6, 1.6, -0.9, 1.7);
    const end = [sin(arm), -0.4 * cos(arm)];
    const lean = [sin(rod) * cos(arm), cos(rod) - 0.4 * sin(rod) * sin(arm)];
    pen.box([0, -0.35], 0.5, 0.7, 0, "line");
    pen.line([0, 0], end, "ink", 0.08);
    pen.line(end, [end[0] + lean[0], end[1] + lean[1]], "accent", 0.08);
    pen.dot(end, 0.07, "ink");
  },
};

// The lander: one rigid body of Gymnasium's mass, engines and start, on two springs instead of legs
// with joints, in metres and kilogrammes. Its inertia is that of hull and legs together.
const SCALE = 30;
const FLAT = 400 / SCALE / 4;
const WIDTH = 600 / SCALE;
const MASS = 4.96;
const INERTIA = 0.95;
const SUBSTEPS = 20;
const SPRING = 800;
const DAMPING = 50;
const FRICTION = 0.14;
const FEET = [
  [-20 / SCALE, -18 / SCALE],
  [20 / SCALE, -18 / SCALE],
];
const HULL = [
  [-14, 17],
  [-17, 0],
  [-17, -10],
  [17, -10],
  [17, 0],
  [14, 17],
].map(([x, y]) => [x / SCALE, y / SCALE]);

const turned = ([x, y], angle, at) => [
  at.x + x * cos(angle) - y * sin(angle),
  at.y + x * sin(angle) + y * cos(angle),
];

function ground(heights, x) {
  const at = clip(x / (WIDTH / 10), 0, 9.999);
  const left = Math.floor(at);
  return heights[left] + (heights[left + 1] - heights[left]) * (at - left);
}

function terrain(random) {
  const rough = many(12, random, 0, 400 / SCALE / 2);
  for (const i of [3, 4, 5, 6, 7]) rough[i] = FLAT;
  const around = (i) => rough[(i + 12) % 12];
  return Array.from({ length: 11 }, (_, i) => 0.33 * (around(i - 1) + rough[i] + around(i + 1)));
}

function shaping([x, y, dx, dy, angle, , left, right]) {
  return -100 * hypot(x, y) - 100 * hypot(dx, dy) - 100 * abs(angle) + 10 * left + 10 * right;
}

function engines(state, [main, side], random) {
  const [along, across] = many(2, random, -1 / SCALE, 1 / SCALE);
  const [sine, cosine] = [sin(state.angle), cos(state.angle)];
  const next = { ...state };
  const push = (x, y, atX, atY, power) => {
    next.dx -= (x * power) / MASS;
    next.dy -= (y * power) / MASS;
    next.turn += (atX * (-y * power) - atY * (-x * power)) / INERTIA;
  };
  if (main) {
    const below = 4 / SCALE + 2 * along;
    const [x, y] = [sine * below - cosine * across, -cosine * below - sine * across];
    push(x, y, x, y, 13 * main);
  }
  if (side) {
    const away = 3 * across + (sign(side) * 12) / SCALE;
    const [x, y] = [sine * along - cosine * away, -cosine * along - sine * away];
    push(x, y, x - (sine * 17) / SCALE, y + (cosine * 14) / SCALE, 0.6 * abs(side));
  }
  return next;
}

function fall(state) {
  const next = { ...state, contacts: [0, 0] };
  const dt = 1 / 50 / SUBSTEPS;
  for (let i = 0; i < SUBSTEPS; i++) {
    let [x, y, torque] = [0, -10 * MASS, 0];
    FEET.forEach((foot, number) => {
      const at = turned(foot, next.angle, next);
      const deep = ground(state.heights, at[0]) - at[1];
      if (deep <= 0) return;
      const [leverX, leverY] = [at[0] - next.x, at[1] - next.y];
      const [slide, sink] = [next.dx - next.turn * leverY, next.dy + next.turn * leverX];
      const up = max(0, SPRING * deep - DAMPING * sink);
      const along = clip(-DAMPING * slide, -FRICTION * up, FRICTION * up);
      x += along;
      y += up;
      torque += leverX * up - leverY * along;
      next.contacts[number] = 1;
    });
    next.dx += (x / MASS) * dt;
    next.dy += (y / MASS) * dt;
    next.turn += (torque / INERTIA) * dt;
    next.x += next.dx * dt;
    next.y += next.dy * dt;
    next.angle += next.turn * dt;
  }
  const still = hypot(next.dx, next.dy) < 0.05 && abs(next.turn) < 0.05;
  next.still = still && next.contacts[0] && next.contacts[1] ? state.still + 1 : 0;
  return next;
}

const lunarlander = {
  rate: 50,
  longest: 1000,
  choices: 4,
  approximate: "the physics of its legs and ground are simpler than Box2D's",
  reset(random) {
    const [dx, dy] = many(2, random, -1000, 1000).map((force) => force / MASS / 50);
    const heights = terrain(random);
    const start = { x: WIDTH / 2, y: 400 / SCALE, dx, dy, angle: 0, turn: 0, heights, still: 0 };
    return fall({ ...start, contacts: [0, 0], engines: [0, 0] });
  },
  observe: ({ x, y, dx, dy, angle, turn, contacts }) =>
    Float32Array.of(
      (x - WIDTH / 2) / (WIDTH / 2),
      (y - FLAT - 18 / SCALE) / (400 / SCALE / 2),
      (dx * (WIDTH / 2)) / 50,
      (dy * (400 / SCALE / 2)) / 50,
      angle,
      (20 * turn) / 50,
      ...contacts,
    ),
  power: (action) => [action === 2 ? 1 : 0, action === 1 || action === 3 ? action - 2 : 0],
  step(state, action, random) {
    const power = this.power(action);
    const next = fall(engines(state, power, random));
    next.engines = power;
    const [before, after] = [state, next].map((each) => shaping(this.observe(each)));
    const fuel = 0.3 * power[0] + 0.03 * abs(power[1]);
    const hit = HULL.some((corner) => {
      const [x, y] = turned(corner, next.angle, next);
      return y < ground(state.heights, x);
    });
    if (hit || abs(this.observe(next)[0]) >= 1) return [next, -100, true];
    return next.still >= 25 ? [next, 100, true] : [next, after - before - fuel, false];
  },
  draw(pen, state) {
    pen.view(0, WIDTH, 0, 400 / SCALE);
    const { heights, angle } = state;
    heights.slice(1).forEach((y, i) => {
      pen.line([i * (WIDTH / 10), heights[i]], [(i + 1) * (WIDTH / 10), y], "soft", 0.06);
    });
    for (const x of [4, 6]) pen.line([2 * x, FLAT], [2 * x, FLAT + 1], "warn", 0.08);
    for (const foot of FEET) {
      const hip = turned([foot[0] * 0.6, -0.3], angle, state);
      pen.line(hip, turned(foot, angle, state), "ink", 0.14);
    }
    pen.shape(HULL.map((corner) => turned(corner, angle, state)), "accent");
    const top = 400 / SCALE;
    if (state.y > top + 0.5) {  // it is above all that is shown
      pen.shape([[-0.3, -0.6], [0.3, -0.6], [0, -0.1]].map(([x, y]) => [state.x + x, top + y]), "accent");
    }
    const [main, side] = state.engines;
    if (main) {
      const flame = [[0, -0.35], [0, -0.35 - 0.7 * main]];
      pen.line(...flame.map((end) => turned(end, angle, state)), "warn", 0.25);
    }
    if (side) {
      const flame = [[-sign(side) * 0.55, 0.45], [-sign(side) * 0.9, 0.45]];
      pen.line(...flame.map((end) => turned(end, angle, state)), "warn", 0.12);
    }
  },
};

const lunarlandercontinuous = {
  ...lunarlander,
  choices: 0,
  low: [-1, -1],
  high: [1, 1],
  power([main, side]) {
    const strong = abs(side) > 0.5 ? sign(side) * clip(abs(side), 0.5, 1) : 0;
    return [main > 0 ? 0.5 + 0.5 * min(main, 1) : 0, strong];
  },
};

const ENVIRONMENTS = {
  "CartPole-v1": cartpole,
  "CartPole-v0": { ...cartpole, longest: 200 },
  "Acrobot-v1": acrobot,
  "Pendulum-v1": pendulum,
  "MountainCar-v0": mountaincar,
  "MountainCarContinuous-v0": mountaincarcontinuous,
  "LunarLander-v3": lunarlander,
  "LunarLanderContinuous-v3": lunarlandercontinuous,
  "rotary:RotaryPendulum": rotary,
};

// Options that change nothing of what is computed here.
const KNOWN = { "rotary:RotaryPendulum": { seconds: [0, 0.02], volts: [6] } };

// Whether the page may be able to play the environment of this id.
export const known = (id) => id in ENVIRONMENTS;

// The environment of these settings of an experiment; null if the page cannot play it.
export function environment({ id, options, wrappers }) {
  const known = KNOWN[id] ?? {};
  const same = Object.entries(options).every(([name, value]) => known[name]?.includes(value));
  return (same && !wrappers.length && ENVIRONMENTS[id]) || null;
}
