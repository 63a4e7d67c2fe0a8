"""Events of a run: one struct for each kind of line in `history.jsonl`. Pure.

Laws of this file:
- A parent makes events; history, log and progress line read them.
- A line has its time first and its kind second. Then come the fields in the order of this file.
  A field that is `UNSET` is left out; one that is None is written as null.
- A reader ignores unknown kinds and fields.

`docs/reference/history.md` has the tables, made from the lines below the fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class Event(msgspec.Struct, kw_only=True):
    """The base of all events."""

    time: float
    """Unix seconds; in one run they never decrease."""
    event: str = ""
    """The kind."""


class Started(Event, kw_only=True):
    """The parent begins a new run."""

    event: Literal["start"] = "start"
    run: str
    """The run's name."""
    software: str
    """The version of the parent's software."""
    start: str | UnsetType = UNSET
    """The checkpoint of `parent.start`, and the arrays that were taken from it."""


class Resumed(Event, kw_only=True):
    """The parent resumes a run."""

    event: Literal["resume"] = "resume"
    run: str
    """The run's name."""
    software: str
    """The version of the parent's software."""
    file: str | UnsetType = UNSET
    """Plain run: the checkpoint from which it resumes."""
    version: int | UnsetType = UNSET
    """Plain run: the version of θ_P there."""
    update: float | UnsetType = UNSET
    """Plain run: exchanges a child so far."""
    episodes: int | UnsetType = UNSET
    """Plain run: episodes done."""
    steps: int | UnsetType = UNSET
    """Plain run: environment steps done."""
    seconds: float | UnsetType = UNSET
    """Seconds of training or of the search done."""
    mean_return: float | UnsetType | None = UNSET
    """Plain run: mean return of the last `stop.window` episodes."""
    trials: int | UnsetType = UNSET
    """Search: trials begun."""
    reports: int | UnsetType = UNSET
    """Search: reports made."""


class Joined(Event, kw_only=True):
    """A child has said what its network is, and takes part."""

    event: Literal["join"] = "join"
    child: str
    """The child's name."""
    version: int
    """The version of θ_P that it was given."""
    parameters: int
    """Numbers of its network."""
    trial: int | UnsetType = UNSET
    """Search: the trial that it trains."""


class Exchange(Event, kw_only=True):
    """A push was applied. There is a line for every `parent.history_every`-th one."""

    event: Literal["exchange"] = "exchange"
    child: str
    """The child that pushed."""
    version: int
    """The version of θ_P after it."""
    update: float
    """Exchanges a child so far: each counts 1/n while n children take part."""
    staleness: int
    """Versions that other pushes had made since the child's last answer."""
    episodes: int
    """Episodes so far, of all children or, in a search, of the trial."""
    steps: int
    """Environment steps so far, of the same."""
    mean_return: float | None
    """Mean return of the last `stop.window` episodes; null before the first has ended."""
    trial: int | UnsetType = UNSET
    """Search: the trial that all this is about."""
    left_out: str | UnsetType = UNSET
    """Reason of the rule to leave the push out, as `"stale"` (docs/notes/rules.md), if it did."""
    distance: float | UnsetType = UNSET
    """Distance ‖θ_C − θ_P‖ / ‖θ_P‖, sampled: at this push, or at the last that was judged: one
    a second of each child, and of all children 64."""


class Measures(Event, kw_only=True):
    """A backend's measures of itself. They follow these fields, by their names."""

    event: Literal["measures"] = "measures"
    backend: str
    """`child.backend`; `"learner"` of a learner beside the parent."""
    child: str
    """The child that measured."""
    trial: int | UnsetType = UNSET
    """Search: the trial that it trained then."""
    figures: dict[str, float] = {}
    """In a line they are beside the other fields: name and value."""


class AveragingChosen(Event, kw_only=True):
    """Settings that follow the number of children (`child.exchange = "chunk"`) have changed."""

    event: Literal["averaging"] = "averaging"
    children: float
    """Children that push lately; one that pushes less often than others counts as a part."""
    staleness: float
    """Mean staleness of the newest pushes, in versions."""
    alpha: float | UnsetType = UNSET
    """α of a push of usual staleness; absent, as the others, if the experiment sets it."""
    lanes: int | UnsetType = UNSET
    """Environments that each core plays at once."""
    minibatch_size: int | UnsetType = UNSET
    """Steps of a minibatch."""
    learning_rate: float | UnsetType = UNSET
    """The children's rate before its schedule."""


class PushesRefused(Event, kw_only=True):
    """Something was said that is not allowed. It changed nothing."""

    event: Literal["refused"] = "refused"
    child: str
    """The speaker's name, or its address before it has a name."""
    code: str
    """The refusal's code."""
    reason: str
    """The refusal's reason, shortened if it is long."""
    count: int | UnsetType = UNSET
    """The number of refusals with this code that the line represents, if there are several."""

    @property
    def times(self) -> int:
        """The number of refusals that the event stands for."""
        return 1 if self.count is UNSET else self.count


class Left(Event, kw_only=True):
    """A child is gone. It may come back."""

    event: Literal["leave"] = "leave"
    child: str
    """The child's name."""
    reason: str
    """Its own reason, or how its connection ended."""


class CheckpointWritten(Event, kw_only=True):
    """A checkpoint is on the disk."""

    event: Literal["checkpoint"] = "checkpoint"
    version: int
    """The version of θ_P in it."""
    update: float
    """Exchanges a child until then."""
    file: str
    """Its name in `checkpoints/`."""


class Filmed(Event, kw_only=True):
    """A film of a checkpoint is on the disk, for the run's page."""

    event: Literal["film"] = "film"
    version: int
    """The version of θ_P that plays."""
    file: str
    """Its name in `films/`."""


class Stopped(Event, kw_only=True):
    """The run is over, or its parent was asked to stop."""

    event: Literal["stop"] = "stop"
    reason: str
    """Reason."""
    version: int | UnsetType = UNSET
    """Plain run: the version of θ_P."""


class Warned(Event, kw_only=True):
    """Something that a person should know."""

    event: Literal["warning"] = "warning"
    trial: int | UnsetType = UNSET
    """Search: the trial that this is about."""
    reason: str
    """Text for people."""


class Commanded(Event, kw_only=True):
    """The run's owner asked for something, and got it."""

    event: Literal["command"] = "command"
    action: str
    """`"stop"`, `"checkpoint"`, `"extend"`, `"film"`, `"exclude"` or `"admit"`."""
    by: str
    """The name of the owner's token."""
    child: str | UnsetType = UNSET
    """`exclude`, `admit`: the child's name."""
    limits: dict[str, int | float] | UnsetType = UNSET
    """`extend`: the limits of `[stop]` from then on, by their names."""


class TrialAssigned(Event, kw_only=True):
    """Search: a node is given a trial."""

    event: Literal["trial"] = "trial"
    trial: int
    """The trial's number."""
    child: str
    """The node."""
    phase: int
    """The phase with which it begins, from 0."""
    params: dict[str, Any]
    """The settings that make the trial differ from the others."""


class TrialFailed(Event, kw_only=True):
    """Search: a node could not train its trial."""

    event: Literal["trial_failed"] = "trial_failed"
    trial: int
    """The trial's number."""
    child: str
    """The node."""
    reason: str
    """Reason that the node gave."""


class PhaseReported(Event, kw_only=True):
    """Search: a trial has ended a phase, and the rule has spoken."""

    event: Literal["report"] = "report"
    trial: int
    """The trial's number."""
    phase: int
    """The phase, from 0."""
    node: str
    """The node that trained it."""
    start: float
    """Start of the phase, in seconds of the search."""
    end: float
    """End of the phase, in seconds of the search."""
    metric: float | None
    """Mean return of the last `stop.window` episodes; null counts as the worst."""
    order: int
    """This was the n-th report of its phase."""
    worse: int
    """Earlier reports of the phase that were worse."""
    mode: str
    """The rule's way to decide: `Mode`."""
    verdict: str
    """Consequence: `Verdict`."""
    steps: int
    """Environment steps of the trial so far."""
    episodes: int
    """Episodes of the trial so far."""
    report: int
    """The running number of this report in the search."""
    source: int | UnsetType = UNSET
    """The trial whose weights and settings it goes on with."""
    params: dict[str, Any] | UnsetType = UNSET
    """These settings, perturbed."""


class TrialEnded(Event, kw_only=True):
    """Search: a trial has ended."""

    event: Literal["trial_end"] = "trial_end"
    trial: int
    """The trial's number."""
    state: str
    """`"completed"`, `"stopped"` or `"failed"`."""
    reason: str
    """Reason."""


class Evaluated(Event, kw_only=True):
    """Episodes were played with a checkpoint of the run."""

    event: Literal["evaluation"] = "evaluation"
    mean: float | None
    """Mean return; null if one of the returns is NaN."""
    std: float | None
    """Standard deviation of the returns."""
    minimum: float | None
    """The smallest return."""
    quantiles: dict[str, float | None]
    """The 5 %, 25 %, 50 %, 75 % and 95 % quantiles of the returns."""
    solved: bool | None
    """True if the mean reaches the threshold; null without one."""
    threshold: float | None
    """From which mean on the task counts as solved."""
    episodes: int
    """Episodes played."""
    greedy: bool
    """True if the most probable actions were taken."""
    seed: int
    """The seed that the episodes followed from."""
    checkpoint: str
    """The file that was played."""
    version: int | UnsetType = UNSET
    """The version of the weights in it."""
    environment: str | UnsetType = UNSET
    """The id of the environment that was played."""
    starts: str | UnsetType | None = UNSET
    """Starts of the episodes, as `--starts` says it; null for those of the environment."""
    mean_return: float | None
    """The mean again, under the name that it has in the other lines."""


def _kind(event: type[Event]) -> str:
    return str(next(each.default for each in msgspec.structs.fields(event) if each.name == "event"))


#: The struct of each kind.
KINDS: dict[str, type[Event]] = {_kind(event): event for event in Event.__subclasses__()}

_HEADS = frozenset(Measures.__struct_fields__) - {"figures"}
_encoder = msgspec.json.Encoder()


def as_lines(events: Sequence[Event]) -> bytes:
    """Events as lines of the history. Encoding them together takes half the time."""
    return _encoder.encode_lines(
        [_flat(event) if type(event) is Measures else event for event in events]
    )


def _flat(event: Measures) -> dict[str, Any]:
    """Puts the figures beside the other fields. A figure with the name of a field is dropped."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return dict(fields | fields.pop("figures") | fields)


def decode_line(line: bytes | str) -> dict[str, Any]:
    """The JSON object in a line of a history; a msgspec.DecodeError if it is none."""
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


def from_line(line: bytes | str | dict[str, Any]) -> Event | None:
    """Reads a line of a history; None if its kind is unknown here.

    Args:
        line: JSON, or what JSON has made of it.

    Raises:
        msgspec.MsgspecError: the line is no JSON, or lacks a field of its kind.
    """
    fields = line if isinstance(line, dict) else decode_line(line)
    name = fields.get("event", "")
    if name == "measures":
        figures = {key: value for key, value in fields.items() if key not in _HEADS}
        return msgspec.convert(fields | {"figures": figures}, Measures)
    if isinstance(name, str) and name in KINDS:
        return msgspec.convert(fields, KINDS[name])
    return None
