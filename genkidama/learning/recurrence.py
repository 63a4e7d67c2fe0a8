"""Memory of a network: a GRU over sequences of steps, forward and backward, in NumPy.

With input x, state h and the sigmoid σ (Cho et al. 2014, in torch's variant, which resets the
product and not the state):

    r = σ(W_ir·x + b_ir + W_hr·h + b_hr)        reset
    z = σ(W_iz·x + b_iz + W_hz·h + b_hz)        update
    n = tanh(W_in·x + b_in + r ⊙ g), g = W_hn·h + b_hn
    h′ = (1 − z) ⊙ n + z ⊙ h

The parameters are torch's, each with r, z and n one below the other: `weight_ih_l0` (3H, inputs),
`weight_hh_l0` (3H, H), `bias_ih_l0` and `bias_hh_l0` (3H,). Given d at h′, the gradient at h is
d ⊙ z + W_hᵀ(d ⊙ A), where all of A follows from the way forward:

    A_n = (1 − z)(1 − n²), A_r = A_n·g·r(1 − r), A_z = (h − n)·z(1 − z), A_g = A_n·r

A row of a batch is a step: the state before it (H,), and then its observation. So a batch is
acted on, stored, cut and sent as one without memory, and whatever is done with one row alone
continues from the state that is stored in it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: The parameters' names in a network.
PARAMETERS = tuple(f"memory.{name}_l0" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))


def parameters(inputs: int, size: int) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a GRU's parameters in a network."""
    shapes = (3 * size, inputs), (3 * size, size), (3 * size,), (3 * size,)
    return list(zip(PARAMETERS, shapes, strict=True))


class Packing(NamedTuple):
    """Sequences of different lengths as steps of a shrinking batch, the longest sequence first."""

    #: The rows in the order of their time, int (m,): first those that begin a sequence.
    order: Array
    #: The place of each row in that order, int (m,).
    places: Array
    #: Sequences that have a step t, for each t.
    counts: list[int]


def packed(starts: Array) -> Packing:
    """The packing of consecutive rows.

    Args:
        starts: bool (m,), true where a sequence begins; the first is.
    """
    firsts = np.flatnonzero(starts)
    lengths = np.diff(firsts, append=len(starts))
    rank = np.empty_like(firsts)
    rank[np.argsort(-lengths, kind="stable")] = np.arange(len(firsts))
    times = np.arange(len(starts)) - np.repeat(firsts, lengths)
    order = np.lexsort((np.repeat(rank, lengths), times))
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return Packing(order, places, np.bincount(times).tolist())


def sequence_starts(ends: Array, longest: int) -> Array:
    """The beginnings of sequences of at most `longest` steps, bool (n,).

    Args:
        ends: bool (n,), true where a trajectory ends after this step.
    """
    starts = np.ones(len(ends), np.bool_)
    starts[1:] = ends[:-1]
    steps = np.arange(len(ends))
    starts |= (steps - np.maximum.accumulate(np.where(starts, steps, 0))) % longest == 0
    return starts


class GRU:
    """A GRU of H units over flat memory.

    Args:
        parts: views of its four parameters, as `PARAMETERS` orders them.
        slopes: those of their gradients.
    """

    def __init__(self, parts: list[Array], slopes: list[Array]) -> None:
        self._input, self._recurrent, self._input_bias, self._bias = parts
        self._slopes = slopes
        #: H.
        self.size = size = self._recurrent.shape[1]
        #: Each parameter's rows of r and z, and of n: tanh of what is not contiguous is slow.
        self._gates = [(part[: 2 * size], part[2 * size :]) for part in parts]

    def acting(self) -> Callable[[Array, Array], Array]:
        """A function from m inputs and states to the next states (m, H), for the weights as they
        are now. There is no way back."""
        size = self.size
        (input_rz, input_n), (recurrent_rz, recurrent_n), *biases = self._gates
        (input_bias_rz, input_bias_n), (bias_rz, bias_n) = biases
        # Products with what is transposed are slow.
        weight_rz = np.ascontiguousarray(np.concatenate((input_rz, recurrent_rz), 1).T)
        input_n, recurrent_n = map(np.ascontiguousarray, (input_n.T, recurrent_n.T))
        both_bias_rz = input_bias_rz + bias_rz

        def step(x: Array, h: Array) -> Array:
            rz = np.concatenate((x, h), 1) @ weight_rz
            rz += both_bias_rz
            _sigmoid(rz)
            n = h @ recurrent_n
            n += bias_n
            n *= rz[:, :size]
            n += x @ input_n
            n += input_bias_n
            np.tanh(n, out=n)
            result: Array = h - n
            result *= rz[:, size:]
            result += n
            return result

        return step

    def joined(self) -> Array:
        """One matrix (4H, inputs + H + 1) from x, h and a 1 to half of the sums of r and of z, to
        that of n as if r were ½, and to g/2. With σ(2a) = (1 + tanh a)/2 fewer steps follow it."""
        size, inputs = self.size, self._input.shape[1]
        result = np.zeros((4 * size, inputs + size + 1), np.float32)
        result[: 3 * size, :inputs], result[: 3 * size, -1] = self._input, self._input_bias
        result[: 2 * size, inputs:-1] = self._recurrent[: 2 * size]
        result[: 2 * size, -1] += self._bias[: 2 * size]
        result[: 2 * size] *= 0.5
        inner = result[3 * size :]
        inner[:, inputs:-1], inner[:, -1] = self._recurrent[2 * size :], self._bias[2 * size :]
        inner *= 0.5
        result[2 * size : 3 * size] += inner
        return result

    def forward(self, x: Array, h: Array, starts: Array) -> Array:
        """The states (m, H) after each of m steps of consecutive sequences.

        Args:
            x: the inputs, (m, inputs).
            h: (m, H); those of the rows that begin a sequence count.
            starts: as for `packed`.
        """
        size = self.size
        order, places, counts = self._packing = packed(starts)
        self._x = x = x[order]
        (input_rz, input_n), (recurrent_rz, recurrent_n), *biases = self._gates
        (input_bias_rz, input_bias_n), (bias_rz, bias_n) = biases
        self._rz, self._n = x @ input_rz.T, x @ input_n.T
        self._rz += input_bias_rz + bias_rz
        self._n += input_bias_n
        m = len(order)
        self._before, after = np.empty((2, m, size), np.float32)
        self._inner = np.empty((m, size), np.float32)
        self._before[: counts[0]] = h[order[: counts[0]]]
        weight_rz, weight_n = map(np.ascontiguousarray, (recurrent_rz.T, recurrent_n.T))
        begin = last = 0
        for count in counts:
            now = slice(begin, begin + count)
            if begin:
                self._before[now] = after[begin - last : begin - last + count]
            state = self._before[now]
            rz, inner = self._rz[now], self._inner[now]
            new, result = self._n[now], after[now]
            rz += state @ weight_rz
            _sigmoid(rz)
            np.matmul(state, weight_n, out=inner)
            inner += bias_n
            new += rz[:, :size] * inner
            np.tanh(new, out=new)
            np.subtract(state, new, out=result)
            result *= rz[:, size:]
            result += new
            begin, last = begin + count, count
        return after[places]

    def backward(self, d: Array) -> Array:
        """Writes the gradients of the parameters; that at the inputs, (m, inputs).

        Args:
            d: the gradient at the states of the last `forward`, (m, H).
        """
        size = self.size
        order, places, counts = self._packing
        r, z = np.split(self._rz, 2, 1)
        n = self._n
        at_n = (1.0 - z) * (1.0 - n * n)
        slopes = np.empty((len(order), 3, size), np.float32)
        np.multiply(at_n * self._inner, r * (1.0 - r), out=slopes[:, 0])
        np.multiply(self._before - n, z * (1.0 - z), out=slopes[:, 1])
        np.multiply(at_n, r, out=slopes[:, 2])
        d = d[order]
        begin = len(order)
        for t in range(len(counts) - 1, -1, -1):
            count = counts[t]
            begin -= count
            now = slice(begin, begin + count)
            each = slopes[now]
            each *= d[now, None]
            if t:
                previous = d[begin - counts[t - 1] :][:count]
                previous += each.reshape(count, -1) @ self._recurrent
                previous += d[now] * z[now]
        at_recurrent = slopes.reshape(len(order), -1)
        input_slope, recurrent_slope, input_bias_slope, bias_slope = self._slopes
        np.matmul(at_recurrent.T, self._before, out=recurrent_slope)
        at_recurrent.sum(0, out=bias_slope)
        # Beside g, r is a factor of the product alone: the input's way to n is without it.
        np.multiply(d, at_n, out=slopes[:, 2])
        np.matmul(at_recurrent.T, self._x, out=input_slope)
        at_recurrent.sum(0, out=input_bias_slope)
        below: Array = (at_recurrent @ self._input)[places]
        return below


class RecurrentStack:
    """Layers with a GRU behind them, in the place of a perceptron's layers alone."""

    def __init__(self, stack: Any, memory: GRU) -> None:
        self.layers = stack.layers
        self._stack = stack
        self._memory = memory
        #: The states after the rows of the newest `forward`, (m, H).
        self.state = np.zeros((1, memory.size), np.float32)

    def acting(self) -> Callable[[Array], Array]:
        """A function from rows to the states after each, for the weights as they are now."""
        size, layers = self._memory.size, self._stack.forward
        step = self._memory.acting()

        def forward(rows: Array) -> Array:
            # Products of what is not contiguous are slow.
            states = np.ascontiguousarray(rows[:, :size])
            self.state = step(layers(np.ascontiguousarray(rows[:, size:])), states)
            return self.state

        return forward

    def alone(self) -> Callable[[Array], Array]:
        """As `acting`, for one row (H + inputs,), with the state after it (1, H), which the next
        call overwrites."""
        size, dot = self._memory.size, np.dot
        multiply, add = np.multiply, np.add
        # Each layer is one matrix with the bias as its last column, and each input ends with a 1.
        matrices = [np.column_stack((layer.weight, layer.bias)) for layer in self.layers]
        inputs = [np.ones(matrix.shape[1], np.float32) for matrix in matrices]
        gates, given = self._memory.joined(), np.ones(len(matrices[-1]) + size + 1, np.float32)
        results = [*(each[:-1] for each in inputs[1:]), given[: -size - 1]]
        steps = list(zip(matrices, inputs, results, strict=True))
        first, h = inputs[0][:-1], given[-size - 1 : -1]
        activate = self._stack.activate
        found, state = np.empty(4 * size, np.float32), np.empty((1, size), np.float32)
        r, z, n, inner = np.split(found, 4)
        rz, after = found[: 2 * size], state[0]
        half = np.array(0.5, np.float32)  # faster than a number of Python

        def forward(row: Array) -> Array:
            first[:] = row[size:]
            h[:] = row[:size]
            for matrix, x, result in steps:
                dot(matrix, x, result)
                activate(result)
            dot(gates, given, found)
            np.tanh(rz, rz)
            multiply(inner, r, inner)
            add(n, inner, n)
            np.tanh(n, n)
            # h′ = ((h + n) + tanh ⊙ (h − n))/2
            np.subtract(h, n, after)
            multiply(z, after, after)
            add(after, n, after)
            add(after, h, after)
            multiply(after, half, after)
            self.state = state
            return state

        return forward

    def forward(self, rows: Array, starts: Array | None = None) -> Array:
        """The states after each row (m, H).

        Args:
            rows: state and observation, (m, H + inputs).
            starts: as for `packed`; without it each row is by itself, and there is no way back.
        """
        if starts is None:
            return self.acting()(rows)
        size = self._memory.size
        features = self._stack.forward(np.ascontiguousarray(rows[:, size:]))
        self.state = self._memory.forward(features, rows[:, :size], starts)
        return self.state

    def backward(self, d: Array, below: bool) -> Array:
        """As a perceptron's layers: writes all gradients, given that at the states."""
        found: Array = self._stack.backward(self._memory.backward(d), below)
        return found


def _sigmoid(x: Array) -> None:
    """x ← σ(x), by way of tanh, which cannot overflow."""
    x *= 0.5
    np.tanh(x, out=x)
    x *= 0.5
    x += 0.5


def behind(states: Array, observations: Array) -> Array:
    """Rows of states (m, H) and observations (m, …): float32 (m, H + inputs)."""
    flat = np.asarray(observations, np.float32).reshape(len(states), -1)
    return np.concatenate((states, flat), 1)


def shuffled(
    n: int, size: int, rng: Any, starts: Array | None = None
) -> tuple[Array, list[tuple[int, int]]]:
    """An order of n steps, and the parts of about `size` that it is cut into: (begin, end).

    Args:
        rng: has a method `permutation(n)`.
        starts: bool (n,), where sequences begin: these stay together, and none is divided. Without
            it, each step is by itself.
    """
    if starts is None:
        return rng.permutation(n), [(first, min(first + size, n)) for first in range(0, n, size)]
    pieces = np.split(np.arange(n), np.flatnonzero(starts)[1:])
    chosen = [pieces[number] for number in rng.permutation(len(pieces))]
    after = np.cumsum([len(piece) for piece in chosen])
    full = np.flatnonzero(np.diff((after - 1) // size)) if len(after) > 1 else after[:0]
    bounds = [0, *after[full].tolist(), n]
    return np.concatenate(chosen), list(pairwise(bounds))
