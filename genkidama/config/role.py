"""Settings of a child's machine: its parent's address, and the permitted uses of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from genkidama.config.decoding import NAME, Meta, Natural, Section, convert
from genkidama.config.experiment import read_toml
from genkidama.config.parent_address import PARENT
from genkidama.config.sections import check_own, flat

if TYPE_CHECKING:
    from pathlib import Path


class Role(Section, frozen=True):
    """A child machine's own settings: `child/child.toml`. Everything else comes from its parent."""

    parent: Annotated[
        str, Meta(pattern=rf"^{PARENT}\Z", extra={"expected": "ws://HOST:PORT or wss://HOST:PORT"})
    ] = "ws://127.0.0.1:8765"
    """Address of the parent: `ws://HOST:PORT`, or `wss://HOST:PORT` if it has a certificate. For a
    sharded parent, the addresses of all shards in order, separated by commas."""
    name: Annotated[
        str,
        Meta(max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?\Z", extra={"expected": NAME}),
    ] = ""
    """Name of this child; empty means the machine's name, numbered if that is taken."""
    cores: Natural | Literal["auto", "experiment"] = "experiment"
    """Core processes; `"experiment"` means as the experiment says, `"auto"` one for each CPU core,
    as many as fit into the memory."""
    role: Literal["experiment", "bundle", "act", "learn"] = "experiment"
    """Role of this machine among children that share a replay: `"act"`, `"learn"`, or both,
    `"bundle"`; `"experiment"` leaves it to the parent."""
    state: str = ""
    """A directory for this child's own weights and optimizer state, so that it resumes after a
    restart; empty means none."""
    token_file: str = ""
    """A file with the token by which the parent recognizes this child. The environment variable
    GENKIDAMA_TOKEN takes precedence."""
    ca_file: str = ""
    """PEM certificates of the authority that signed the parent's certificate; empty means those
    that this machine trusts."""
    fingerprint: Annotated[
        str,
        Meta(
            pattern=r"^([0-9a-f]{64}(,[0-9a-f]{64})*)?\Z",
            extra={"expected": "64 digits 0-9 a-f, or several such, with commas in between"},
        ),
    ] = ""
    """SHA-256 of the parent's certificate: this child trusts that one and no other, whatever its
    names, its dates and its authority. For a sharded parent, one for all shards, or one for
    each, separated by commas."""

    stay: bool = False
    """Whether this child, when a run is over, waits for the next one at the same address."""

    allow: tuple[str, ...] = ()
    """Modules of yours that this child may import for the parent, as `["my_module"]`, for an
    environment or a network; `["*"]` allows every module, and so any code."""

    settings: dict[str, Any] = {}
    """Settings of the experiment that this machine has for itself, as a table: of `environment` the
    `options`, `lanes`, `period` and what belongs to it; `child.backend`, `child.hang_seconds`, and
    `ga3c`."""

    @property
    def changes(self) -> dict[str, Any]:
        """`settings` by their dotted names, as `"environment.options.port"`."""
        return flat(self.settings)

    @classmethod
    def load(cls, path: str | Path) -> Role:
        """Reads a child's TOML; errors as `Experiment.load`."""
        return cls.from_dict(read_toml(path), source=str(path))

    @classmethod
    def from_dict(cls, settings: dict[str, Any], source: str = "the child's settings") -> Role:
        """Checks plain values; errors as `Experiment.from_dict`."""
        role: Role = convert(settings, cls, source)
        check_own(role.changes, source)
        return role
