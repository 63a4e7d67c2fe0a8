"""Code of a policy in C and JavaScript, for robots without Python and for pages.

Laws of this file:
- Both are made from one description, `ActingNetwork`, so that neither knows more than the other.
- The code computes in float32, as NumPy does. It takes an observation as the environment gives it,
  and returns the most probable action as the environment takes it.
- It allocates nothing in C, depends on nothing in JavaScript, and keeps nothing between two calls.
  The state of a memory is an array of the caller's, which each call overwrites.
"""

from __future__ import annotations

import textwrap
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from string import Template
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama._version import __version__
from genkidama.config.formatting import plural
from genkidama.errors import ConfigurationError
from genkidama.learning.actions import INVALID, bounds, choices, first
from genkidama.learning.heads import is_plain
from genkidama.learning.model import CUT
from genkidama.learning.recurrence import PARAMETERS
from genkidama.protocol.vector import unflatten

if TYPE_CHECKING:
    from genkidama.runs.policy import Policy

Array = npt.NDArray[Any]

#: W (outputs, inputs) and b (outputs,).
Layer = tuple[Array, Array]

#: σ(x) in C and in JavaScript, by the names of `network.activation`.
_ACTIVATIONS = {
    "tanh": ("tanhf(x)", "Math.tanh(x)"),
    "relu": ("x > 0.0f ? x : 0.0f", "Math.max(x, 0)"),
    "elu": ("x > 0.0f ? x : expm1f(x)", "x > 0 ? x : Math.expm1(x)"),
    "silu": ("x / (1.0f + expf(-x))", "x / (1 + Math.exp(-x))"),
}

#: Numbers in a line of C.
_IN_LINE = 6


@dataclass(frozen=True)
class ActingNetwork:
    """The part of a policy that acts, without the language that it is written in."""

    #: Lines about it for whoever reads the code, in ASCII.
    about: tuple[str, ...]
    #: Each layer, float32.
    layers: tuple[Layer, ...]
    #: The GRU before the last layer: a layer of its inputs and one of its states, both as
    #: `genkidama.learning.recurrence` has them; None without a memory.
    memory: tuple[Layer, Layer] | None
    #: The function behind each layer but the last, a key of `_ACTIVATIONS`.
    activation: str
    #: Mean and deviation of the observations, (inputs,) each; None if they are not normalized.
    scale: tuple[Array, Array] | None
    #: Whether a mask of the outputs comes with each observation.
    masked: bool
    #: The number of choices of each column of an action; () if it is continuous.
    choices: tuple[int, ...]
    #: The first choice of each column as the environment counts, int64 (columns,).
    first: Array
    #: The bounds of a continuous action, low and high, float32 (columns,) each.
    bounds: tuple[Array, Array]
    #: Whether an action is one number, instead of an array of one or more.
    single: bool

    @property
    def widths(self) -> list[int]:
        """The number of inputs, without a mask, and that of each layer's outputs."""
        return [self.layers[0][0].shape[1], *(len(bias) for _, bias in self.layers)]

    @property
    def units(self) -> int:
        """H, the number of numbers of a state; 0 without a memory."""
        return 0 if self.memory is None else self.memory[1][0].shape[1]

    @property
    def actions(self) -> int:
        """The number of numbers of an action."""
        return len(self.choices) or self.widths[-1]

    @property
    def rooms(self) -> dict[int, int]:
        """The sizes of the arrays between the layers, by the number of the layer before."""
        before = enumerate(self.widths[:-1])
        return {number: width for number, width in before if number or self.scale is not None}

    @property
    def stack(self) -> int:
        """The bytes that the arrays in C take on the stack."""
        outputs = self.widths[-1] if self.choices else 0
        return 4 * (sum(self.rooms.values()) + 6 * self.units + outputs)

    @property
    def constants(self) -> int:
        """The bytes that its numbers take in C, bounds or choices of the columns among them."""
        columns = 0 if self.single else 2 * self.actions
        return 4 * (columns + sum(array.size for array in self.arrays.values()))

    @property
    def arrays(self) -> dict[str, Array]:
        """All numbers that it computes with, by name, in the order in which the code has them."""
        found = (
            {} if self.scale is None else dict(zip(("mean", "deviation"), self.scale, strict=True))
        )
        for number, (weight, bias) in enumerate(self.layers, 1):
            found |= {f"w{number}": weight, f"b{number}": bias}
        for name, (weight, bias) in zip(("input", "state"), self.memory or (), strict=False):
            found |= {f"w_{name}": weight, f"b_{name}": bias}
        return found


def acting_network(policy: Policy, language: str) -> ActingNetwork:
    """The description of a policy.

    Raises:
        ConfigurationError: its network or its head has no code in that language.
    """
    model, space = policy.model, policy.action_space
    experiment = model.experiment
    without = ""
    if experiment.network.name != "actor-critic":
        without = f"network.name = {experiment.network.name!r}: a network"
    elif not is_plain(model.head):
        without = f"algorithm.name = {experiment.algorithm.name!r}: a head of its own"
    elif space.shape is None:
        without = f"environment.id = {experiment.environment.id!r}: a Tuple or Dict of actions"
    if without:
        raise ConfigurationError(
            f"{without} that has no form in {language}; take ONNX: genkidama export DIR --as onnx, "
            "or policy.to_onnx"
        )
    parts = unflatten(model.numbers, model.signature)
    layers = tuple(
        (part, parts[name.replace("weight", "bias")])
        for stack in ("body.", "policy.")
        for name, part in parts.items()
        if name.startswith(stack) and name.endswith("weight")
    )
    gru = [parts[name] for name in PARAMETERS if name in parts]
    seen = slice(model.memory, model.memory + layers[0][0].shape[1])
    scale, columns = model.mean_and_deviation(), choices(space)
    low, high = (bound.astype(np.float32) for bound in bounds(space))
    return ActingNetwork(
        about=_about(policy, layers),
        layers=layers,
        memory=((gru[0], gru[2]), (gru[1], gru[3])) if gru else None,
        activation=experiment.network.activation,
        scale=None if scale is None else (scale[0][seen], scale[1][seen]),
        masked=bool(model.mask),
        choices=columns,
        first=np.zeros(len(columns), np.int64) + (np.ravel(first(space)) if columns else 0),
        bounds=(low, high),
        single=isinstance(space, gymnasium.spaces.Discrete),
    )


def _about(policy: Policy, layers: Sequence[Layer]) -> tuple[str, ...]:
    """Lines about a policy: its origin, its network, what goes in and what comes out."""
    experiment, space = policy.experiment, policy.action_space
    environment, network = experiment.environment, experiment.network
    widths = [layers[0][0].shape[1], *(len(bias) for _, bias in layers)]
    columns, memory = choices(space), policy.model.memory
    stages = list(map(str, widths))
    if memory:
        stages.insert(-1, f"GRU of {plural(memory, 'unit')}")
    if isinstance(space, gymnasium.spaces.Discrete):
        action = f"one of {space.start} to {space.start + space.n - 1}, the most probable"
    elif columns:
        action = f"{plural(len(columns), 'number')}, the most probable choice of each"
    else:
        action = f"{plural(widths[-1], 'number')}: the mean, clipped to its bounds"
    shape = space.shape or ()
    wrappers = ", ".join(wrapper.name for wrapper in environment.wrappers)
    lines = {
        "weights": f"version {policy.version}, {experiment.algorithm.name}, "
        f"Genkidama {__version__}",
        "network": f"{' -> '.join(stages)}, {network.activation}",
        "observation": f"{plural(widths[0], 'number')}, as the environment gives them"
        + (f", behind {wrappers}" if wrappers else "")
        + ("; they are normalized here" if environment.normalize_observations else ""),
        "state": f"{plural(memory, 'number')}: set them to 0 when an episode begins; each call "
        "overwrites them"
        if memory
        else "",
        "mask": f"{widths[-1]} numbers: 0 for each choice that is invalid"
        if policy.model.mask
        else "",
        "action": action + (f"; shape {shape}, row by row" if len(shape) > 1 else ""),
        "period": f"{environment.period:g} s" if environment.period else "",
    }
    said = [f"{name:13}{text}" for name, text in lines.items() if text]
    found = [f"Policy for {environment.id}: from an observation to an action.", "", *said]
    return tuple(line.encode("ascii", "replace").decode() for line in found)


def _comment(lines: Iterable[str]) -> str:
    return "\n".join(["/*", *(f" * {line}".rstrip() for line in lines), " */\n"])


def _joined(*parts: tuple[str, object], **values: object) -> str:
    """The texts that are wanted, one after the other, with the values filled in."""
    return Template("".join(text for text, wanted in parts if wanted)).substitute(values)


# C.

_C_HEAD = """\
#ifndef POLICY_H
#define POLICY_H

#include <math.h>

#define POLICY_INPUTS $inputs   /* numbers of an observation */
#define POLICY_OUTPUTS $outputs   /* numbers that the network gives */
#define POLICY_ACTIONS $actions   /* numbers of an action */
$memory$numbers
/* y = Wx + b, with W row by row. */
static inline void policy_layer(const float *w, const float *b, const float *x, int inputs,
                                float *y, int outputs)
{
    for (int row = 0; row < outputs; row++) {
        float sum = b[row];
        for (int column = 0; column < inputs; column++)
            sum += *w++ * x[column];
        y[row] = sum;
    }
}

static inline float policy_activation(float x)
{
    return $activation;
}

static inline void policy_activate(float *y, int count)
{
    for (int i = 0; i < count; i++)
        y[i] = policy_activation(y[i]);
}
"""

_C_MEMORY = """
static inline float policy_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* The state of the GRU after an input, in the place of the one before. */
static inline void policy_remember(const float *x, int inputs, float *state)
{
    float seen[3 * POLICY_MEMORY], known[3 * POLICY_MEMORY];

    policy_layer(policy_w_input, policy_b_input, x, inputs, seen, 3 * POLICY_MEMORY);
    policy_layer(policy_w_state, policy_b_state, state, POLICY_MEMORY, known, 3 * POLICY_MEMORY);
    for (int i = 0; i < POLICY_MEMORY; i++) {
        float reset = policy_sigmoid(seen[i] + known[i]);
        float update = policy_sigmoid(seen[POLICY_MEMORY + i] + known[POLICY_MEMORY + i]);
        float fresh = tanhf(seen[2 * POLICY_MEMORY + i] + reset * known[2 * POLICY_MEMORY + i]);

        state[i] = fresh + update * (state[i] - fresh);
    }
}
"""

_C_CLIP = """
static inline float policy_clip(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}
"""

_C_MASK = """
/* Makes the outputs of invalid choices the least. A mask without a valid one counts as none. */
static inline void policy_mask(float *outputs, const unsigned char *mask)
{
    int valid = 0;

    for (int i = 0; i < POLICY_OUTPUTS; i++)
        valid |= mask[i];
    for (int i = 0; valid && i < POLICY_OUTPUTS; i++)
        if (!mask[i])
            outputs[i] = ${invalid}f;
}
"""

_C_OUTPUTS = """
/* All that the network gives: $kind. */
static inline void policy_outputs(const float *observation$state$mask, float *outputs)
{
$steps
}
"""

_C_SCALE = """\
    for (int i = 0; i < POLICY_INPUTS; i++)
        x0[i] = policy_clip((observation[i] - policy_mean[i]) / policy_deviation[i], -CUT, CUT);"""

_C_LARGEST = """
/* The place of the largest number; of equal ones, the first. */
static inline int policy_largest(const float *x, int count)
{
    int best = 0;

    for (int i = 1; i < count; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}
"""

_C_SINGLE = """
static inline int policy_act(const float *observation$state$mask)
{
    float outputs[POLICY_OUTPUTS];

    policy_outputs(observation$given, outputs);
    return ${start}policy_largest(outputs, POLICY_OUTPUTS);
}
"""

_C_COLUMNS = """
static inline void policy_act(const float *observation$state$mask, int *action)
{
    static const int choices[POLICY_ACTIONS] = {$choices};
    static const int first[POLICY_ACTIONS] = {$first};
    float outputs[POLICY_OUTPUTS];
    const float *column = outputs;

    policy_outputs(observation$given, outputs);
    for (int i = 0; i < POLICY_ACTIONS; i++) {
        action[i] = first[i] + policy_largest(column, choices[i]);
        column += choices[i];
    }
}
"""

_C_BOX = """
static inline void policy_act(const float *observation$state, float *action)
{
    static const float low[POLICY_ACTIONS] = {$low};
    static const float high[POLICY_ACTIONS] = {$high};

    policy_outputs(observation$given, action);
    for (int i = 0; i < POLICY_ACTIONS; i++)
        action[i] = policy_clip(action[i], low[i], high[i]);
}
"""


def to_c(network: ActingNetwork, prefix: str = "policy") -> str:
    """A header in C99, which is C++, too: `PREFIX_act`, `PREFIX_outputs`, and all numbers."""
    inputs, *_, outputs = network.widths
    given = _given(network)
    code = _joined(
        (_C_HEAD, True),
        (_C_MEMORY, network.memory),
        (_C_CLIP, network.scale is not None or not network.choices),
        (_C_MASK, network.masked),
        (_C_OUTPUTS, True),
        (_C_LARGEST, network.choices),
        (_C_SINGLE, network.single),
        (_C_COLUMNS, network.choices and not network.single),
        (_C_BOX, not network.choices),
        ("\n#endif\n", True),
        inputs=inputs,
        outputs=outputs,
        actions=network.actions,
        memory=f"#define POLICY_MEMORY {network.units}   /* numbers of a state */\n"
        if network.memory
        else "",
        numbers="".join(_c_array(name, array) for name, array in network.arrays.items()),
        activation=_ACTIVATIONS[network.activation][0],
        invalid=INVALID,
        kind=_kind(network),
        state=", float *state" if network.memory else "",
        mask=", const unsigned char *mask" if network.masked else "",
        given=given,
        steps="\n".join(_c_steps(network)),
        choices=_listed(network.choices),
        first=_listed(network.first),
        start=_start(network),
        low=_listed(map(_c_number, network.bounds[0])),
        high=_listed(map(_c_number, network.bounds[1])),
    )
    use = ["float observation[POLICY_INPUTS];"]
    if network.memory:
        use.append("float state[POLICY_MEMORY] = {0};")
    if network.masked:
        use.append("unsigned char mask[POLICY_OUTPUTS];")
    if network.single:
        use.append(f"int action = policy_act(observation{given});")
    else:
        use.append(f"{'int' if network.choices else 'float'} action[POLICY_ACTIONS];")
        use.append(f"policy_act(observation{given}, action);")
    size = f"{network.constants:,} bytes of constants, {network.stack:,} of arrays on the stack."
    lines = [*(f"    {prefixed(line, prefix)}" for line in use), "", size]
    return _comment([*network.about, "", *lines]) + prefixed(code, prefix)


def prefixed(code: str, prefix: str) -> str:
    """Code in C with this prefix of names in the place of `policy`."""
    return code.replace("policy_", f"{prefix}_").replace("POLICY_", f"{prefix.upper()}_")


def _c_steps(network: ActingNetwork) -> Iterator[str]:
    """The statements of `policy_outputs`."""
    x = "observation" if network.scale is None else "x0"
    if arrays := [f"x{number}[{width}]" for number, width in network.rooms.items()]:
        yield f"    float {', '.join(arrays)};\n"
    if network.scale is not None:
        yield _C_SCALE.replace("CUT", _c_number(CUT))
    for number, (weight, _) in enumerate(network.layers, 1):
        outputs, inputs = weight.shape
        layer = f"policy_w{number}, policy_b{number}"
        if network.memory and number == len(network.layers):
            yield f"    policy_remember({x}, {network.widths[-2]}, state);"
            x = "state"
        y = "outputs" if number == len(network.layers) else f"x{number}"
        yield f"    policy_layer({layer}, {x}, {inputs}, {y}, {outputs});"
        if y != "outputs":
            yield f"    policy_activate({y}, {outputs});"
        x = y
    if network.masked:
        yield "    if (mask)\n        policy_mask(outputs, mask);"


def _c_array(name: str, array: Array) -> str:
    numbers = [_c_number(number) for number in array.ravel()]
    rows = (numbers[start : start + _IN_LINE] for start in range(0, len(numbers), _IN_LINE))
    text = ",\n    ".join(map(", ".join, rows))
    return f"\nstatic const float policy_{name}[{len(numbers)}] = {{\n    {text}\n}};\n"


def _c_number(number: float) -> str:
    """The shortest text that is this number of float32."""
    text = str(np.float32(number))
    return text.replace("inf", "INFINITY") if "inf" in text else f"{text}f"


# JavaScript.

_JS_HEAD = """
/** Numbers of an observation, and those that the network gives. */
export const INPUTS = $inputs;
export const OUTPUTS = $outputs;
"""

_JS_UNITS = """
/** Numbers of a state: new Float32Array(MEMORY) when an episode begins. Each call overwrites it. */
export const MEMORY = $units;
"""

_JS_SINGLE = """
/** The most probable action: a number. */
export function act(observation$given) {
  return ${start}largest(outputs(observation$given));
}
"""

_JS_COLUMNS = """
/** The most probable action: an Int32Array of $actions. */
export function act(observation$given) {
  const y = outputs(observation$given);
  let end = 0;
  return Int32Array.of($choices).map(
    (choices, i) => [$first][i] + largest(y.subarray(end, (end += choices))),
  );
}
"""

_JS_BOX = """
/** The mean of the actions, within their bounds: a Float32Array of $actions. */
export function act(observation$given) {
  const low = [$low];
  const high = [$high];
  return outputs(observation$given).map((x, i) => clip(x, low[i], high[i]));
}
"""

_JS_OUTPUTS = """
/** All that the network gives, a Float32Array: $kind. */
export function outputs(observation$given) {
  check("an observation", observation, INPUTS);
  let x = Float32Array.from(observation);
"""

_JS_SCALE = """\
  x = x.map((value, i) => clip((value - mean[i]) / deviation[i], -$cut, $cut));
"""

_JS_CHECK_STATE = """\
  check("a state", state, MEMORY);
"""

_JS_LAYERS = """\
  layers.forEach((layer, number) => {
$remembered    x = forward(layer, x);
    if (number < layers.length - 1) x = x.map(activation);
  });
"""

_JS_MASK = """\
  if (mask) {
    check("a mask", mask, OUTPUTS);
    // A mask without a valid choice counts as none.
    if (mask.some((valid) => valid)) x = x.map((value, i) => (mask[i] ? value : $invalid));
  }
"""

_JS_TAIL = """\
  return x;
}

function check(name, given, length) {
  if (given.length !== length) {
    throw new RangeError(`$${name} of $${given.length} numbers: expected $${length}`);
  }
}

// y = Wx + b, with W row by row.
function forward([weight, bias], x) {
  return bias.map((sum, row) => {
    for (let i = 0; i < x.length; i++) sum += weight[row * x.length + i] * x[i];
    return sum;
  });
}

function activation(x) {
  return $activation;
}
"""

_JS_MEMORY = """
const sigmoid = (x) => 1 / (1 + Math.exp(-x));

// The state of the GRU after an input, in the place of the one before.
function remember(x, state) {
  const seen = forward(input, x);
  const known = forward(recurrent, state);
  for (let i = 0; i < MEMORY; i++) {
    const reset = sigmoid(seen[i] + known[i]);
    const update = sigmoid(seen[MEMORY + i] + known[MEMORY + i]);
    const fresh = Math.tanh(seen[2 * MEMORY + i] + reset * known[2 * MEMORY + i]);
    state[i] = fresh + update * (state[i] - fresh);
  }
  return state;
}
"""

_JS_CLIP = """
function clip(x, low, high) {
  return Math.min(Math.max(x, low), high);
}
"""

_JS_LARGEST = """
// The place of the largest number; of equal ones, the first.
function largest(x) {
  return x.reduce((best, value, i) => (value > x[best] ? i : best), 0);
}
"""

_JS_NUMBERS = """
// All numbers, float32 in base64, and from them one array after the other.
const numbers = new Float32Array(
  Uint8Array.from(
    atob(`
$numbers
`),
    (letter) => letter.charCodeAt(0),
  ).buffer,
);
let taken = 0;
const take = (count) => numbers.subarray(taken, (taken += count));
"""

_JS_GRU = """\
const input = [take($width * 3 * MEMORY), take(3 * MEMORY)];
const recurrent = [take(MEMORY * 3 * MEMORY), take(3 * MEMORY)];
"""


def to_js(network: ActingNetwork, name: str = "policy.js") -> str:
    """An ES module for pages and Node.js: `act`, `outputs`, and all numbers.

    Args:
        network: the network.
        name: of the file, for the example in its comment.
    """
    inputs, *_, outputs = network.widths
    given = _given(network)
    raw = b"".join(array.astype("<f4").tobytes() for array in network.arrays.values())
    code = _joined(
        (_JS_HEAD, True),
        (_JS_UNITS, network.memory),
        (_JS_SINGLE, network.single),
        (_JS_COLUMNS, network.choices and not network.single),
        (_JS_BOX, not network.choices),
        (_JS_OUTPUTS, True),
        (_JS_CHECK_STATE, network.memory),
        (_JS_SCALE, network.scale is not None),
        (_JS_LAYERS, True),
        (_JS_MASK, network.masked),
        (_JS_TAIL, True),
        (_JS_MEMORY, network.memory),
        (_JS_CLIP, network.scale is not None or not network.choices),
        (_JS_LARGEST, network.choices),
        (_JS_NUMBERS, True),
        (
            "const mean = take(INPUTS);\nconst deviation = take(INPUTS);\n",
            network.scale is not None,
        ),
        ("const layers = $layers.map(\n", True),
        ("  ([inputs, outputs]) => [take(inputs * outputs), take(outputs)],\n);\n", True),
        (_JS_GRU, network.memory),
        inputs=inputs,
        outputs=outputs,
        actions=network.actions,
        numbers="\n".join(textwrap.wrap(b64encode(raw).decode(), 100)),
        activation=_ACTIVATIONS[network.activation][1],
        invalid=INVALID,
        kind=_kind(network),
        given=given,
        layers=[[*weight.shape[::-1]] for weight, _ in network.layers],
        units=network.units,
        width=network.widths[-2],
        remembered="    if (number === layers.length - 1) x = remember(x, state);\n"
        if network.memory
        else "",
        cut=CUT,
        choices=_listed(network.choices),
        first=_listed(network.first),
        start=_start(network),
        low=_listed(map(_js_number, network.bounds[0])),
        high=_listed(map(_js_number, network.bounds[1])),
    )
    use = [f'    import {{ act }} from "./{name}";', f"    const action = act(observation{given});"]
    if network.memory:
        use[:1] = [
            f'    import {{ MEMORY, act }} from "./{name}";',
            "    const state = new Float32Array(MEMORY);",
        ]
    return _comment([*network.about, "", *use]) + code


def _js_number(number: float) -> str:
    return str(np.float32(number)).replace("inf", "Infinity")


def _kind(network: ActingNetwork) -> str:
    return "a number for each choice, the more the better" if network.choices else "means"


def _start(network: ActingNetwork) -> str:
    """The first choice of a single action, as it stands before the place of the chosen one."""
    return f"{network.first[0]} + " if network.single and network.first[0] else ""


def _given(network: ActingNetwork) -> str:
    """The arguments behind the observation."""
    return ", state" * bool(network.memory) + ", mask" * network.masked


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
