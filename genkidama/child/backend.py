"""Backend: the interface between a child and its training (`child.backend`)."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from genkidama.config.experiment import Experiment
from genkidama.config.plugin import find
from genkidama.errors import ConfigurationError
from genkidama.protocol.session import Begin, BlendReply
from genkidama.protocol.session import Work as Work
from genkidama.protocol.vector import Signature, Vector
from genkidama.runtime.import_strings import is_import_string, load_object


class Backend(Protocol):
    """Training on one machine; `CoreOrchestrator` (`"hogwild"`) and `GA3C` (`"ga3c"`) are built in.

    `cores` is a number to keep to, unless `experiment.child.cores` is "auto". Then it is how many
    the CPU has. A backend that takes fewer, because more would not fit into the memory, says how
    many after `startup` by an attribute of this name.

    One asyncio loop makes all calls, in the order of the methods below. It repeats the calls from
    `due` to `release`. A custom backend is a class with these methods and this constructor, named
    by `child.backend = "module:Class"`.
    """

    def __init__(self, experiment: Experiment, cores: int, name: str) -> None: ...

    async def startup(self) -> Signature:
        """Builds the network and describes its vector. Nothing trains yet.

        Raises:
            ConfigurationError: the experiment names something that cannot be built.
        """
        ...

    async def begin(self, weights: Vector | None, version: int = 0) -> None:
        """Starts training, from these weights or, if None, from its own initial ones.

        `version` is the parent's: a resumed run draws other random numbers than at its start.
        """
        ...

    async def due(self) -> None:
        """Returns when an exchange is due; may be cancelled and called again.

        At the start none is due: the weights are those that the child was given. With
        `child.exchange = "episode"` an exchange is due when each process has ended an episode, with
        `"update"` when each has made an update or found a gradient, with `"free"` after
        `exchange_seconds` or `exchange_steps`.

        Raises:
            GenkidamaError: training cannot continue.
        """
        ...

    def snapshot(self) -> Vector | None:
        """A copy of the weights θ_C; None to ask for θ_P and push nothing."""
        ...

    def take_work(self) -> Work:
        """The work since the last call."""
        ...

    def blend(self, sent: Vector, parent: Vector, beta: float) -> None:
        """θ_C ← (1−β)θ_C + βθ_P. `sent` is the snapshot that the parent's answer belongs to."""
        ...

    def reset(self, weights: Vector) -> None:
        """θ_C ← these weights, and forgets the optimizer's state: training had diverged."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of everything that a restarted child would miss: weights and optimizer state."""
        ...

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Takes over what `state` gave, after `startup` and before `begin`."""
        ...

    def set_progress(self, progress: float) -> None:
        """Sets the share of the run that is done, in [0, 1], for the schedules."""
        ...

    def release(self) -> None:
        """The exchange is over, or there is no parent: wakes every process that waits."""
        ...

    async def shutdown(self) -> None:
        """Ends every process and frees all shared memory, within two seconds."""
        ...


def notify_reply(backend: Backend, reply: Begin | BlendReply, version: int) -> None:
    """Tells a backend the progress and, as far as it has these methods, `heard(version)` of θ_P,
    `answered(steps)` and `averaged(children)`."""
    backend.set_progress(reply.progress)
    told = {"heard": version, "answered": reply.steps, "averaged": reply.children}
    for name, value in told.items():
        if (method := getattr(backend, name, None)) is not None:
            method(value)


class GradientBackend(Backend, Protocol):
    """A backend whose child can push gradients; `"hogwild"` is one."""

    def gradient(self) -> Vector | None:
        """The mean of the gradients found since the last call, of all trained numbers.

        They belong to the weights that the last exchange left. None if none has been found.
        """
        ...


class ChunkBackend(Backend, Protocol):
    """A backend that takes θ_P before it learns: `child.exchange = "chunk"`.

    Its `blend` keeps what has been learned since `sent`.
    """

    #: Whether the exchange that is due is a pull: the next thing is learning, and not acting.
    pulls: bool
    #: Seconds for which its processes still act while the answer is awaited, and seconds of a
    #: chunk; 0 if not known.
    hidden: tuple[float, float]

    def weights(self) -> Vector:
        """θ_C itself, only to be read and at once."""
        ...

    def waited(self, seconds: float) -> None:
        """Notes how long it took from the request for θ_P to the answer."""
        ...

    def take(self, weights: Vector | None) -> None:
        """θ_C ← θ_P; None if it is no newer."""
        ...


class NewsBackend(Backend, Protocol):
    """A backend that continues while it waits for newer weights of the parent's.

    If its `snapshot` is None, θ_P is asked for, and the exchange is over before there is an answer.
    """

    #: Whether θ_P is to be asked for with the push that is being made.
    asks: bool

    def pulling(self) -> None:
        """θ_P is asked for. The answer may wait until there is a newer one."""
        ...

    def pulled(self, weights: Vector | None, steps: int) -> None:
        """The answer: θ_P, or None if it is no newer, and the steps of the next push."""
        ...


def make_backend(experiment: Experiment, cores: int, child: str) -> Backend:
    """The backend that `child.backend` names; no other one is imported.

    Args:
        experiment: with its settings.
        cores: as `Backend` takes it.
        child: the child's name.

    Raises:
        ConfigurationError: an import string that leads nowhere, or to a backend without gradients
            where these are pushed.
    """
    name, acts = experiment.child.backend, experiment.sends_experience
    kind: Any
    if is_import_string(name):
        kind = load_object(name, "child.backend")
        if not callable(kind):
            raise ConfigurationError(f"child.backend = {name!r}: is no class")
    else:
        kind = find("backends", "experience" if acts else name)
    if kind is None and acts:
        raise ConfigurationError(
            f"parent.rule = {experiment.parent.rule!r}: takes experience, which is of the plug-in "
            "'actors', which is not there; take another rule, or install Genkidama anew"
        )
    if kind is None:
        raise ConfigurationError(
            f"child.backend = {name!r}: no plug-in has this backend; install one, or set it to "
            "'hogwild'"
        )
    backend: Backend = kind(experiment, cores, child)
    if experiment.pushes == "gradient" and not hasattr(backend, "gradient"):
        raise ConfigurationError(
            f"child.backend = {experiment.child.backend!r}: gives no gradients, which the parent's "
            "rule takes; set child.backend to 'hogwild', or take another parent.rule"
        )
    return backend
