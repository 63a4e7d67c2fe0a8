"""What `parent.rule_options` may say for each of the named rules. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from genkidama.config.decoding import Count, Meta, Natural, NotNegative, Section

__all__ = ["DifferenceOptions", "GradientOptions", "WeightedOptions"]

Below1 = Annotated[float, Meta(ge=0.0, lt=1.0)]
Power = Annotated[float, Meta(ge=-1.0, le=1.0)]


class WeightedOptions(Section, frozen=True):
    """What a push counts, and how many make a step."""

    staleness: Literal["constant", "hinge", "polynomial"] = "constant"
    """How a push of staleness s is weighed: `"constant"` 1; `"polynomial"` (1+s)^−a; `"hinge"` 1 up
    to s = b, then 1/(1+a(s−b))."""
    staleness_decay: NotNegative = 0.5
    """a."""
    staleness_grace: NotNegative = 4.0
    """b, in versions."""
    by: Literal["push", "steps", "speed"] = "push"
    """What else a push is weighed by: `"push"` nothing; `"steps"` its environment steps, relative
    to the mean; `"speed"` its child's steps a second, relative to the mean of all children."""
    buffer: Natural | Literal["children"] = 1
    """How many pushes make one step of θ_P; `"children"` means as many as take part."""
    milliseconds: NotNegative = 0.0
    """A push makes the step with the pushes that wait already, however few, if the first of them
    has waited so long; 0 means that the buffer must be full."""


class DifferenceOptions(WeightedOptions, frozen=True):
    """Also how long a step is, and how steps go on."""

    momentum: Below1 = 0.0
    """μ."""
    nesterov: bool = False
    """Whether the momentum is Nesterov's."""
    delay: Natural = 1
    """`nesterov`: the momentum takes part in every so many steps only, and each difference counts
    one part in so many."""
    children_power: Power = 0.0
    """The rate is multiplied by n to this power while n children take part: 0.5 is √n, 1 is n, −0.5
    is 1/√n."""
    warm_up: Count = 0
    """Steps over which that factor goes from 1 to its full size."""
    max_step: NotNegative = 0.0
    """Longest step of θ_P by its Euclidean norm, divided by √n while n children take part; 0 means
    no limit."""
    max_difference: NotNegative = 10.0
    """A longer difference is cut to this multiple of the length of θ_P when the run began, or of √n
    for n numbers if that is more; 0 means no limit. Each shard of a parent bounds its own part."""


class GradientOptions(WeightedOptions, frozen=True):
    """Also how long a step is, and which gradients are left out."""

    max_staleness: Count | None = None
    """Gradients older than so many versions are left out; absent means none."""
    outlier_sigmas: NotNegative = 0.0
    """Gradients whose loss lies so many standard deviations above the running mean are left out; 0
    means none."""
    children_power: Power = 0.0
    """As for `difference`, for the learning rate."""
    warm_up: Count = 0
    """As for `difference`."""
    max_step: NotNegative = 0.0
    """As for `difference`."""
