"""Where the page of a parent is. Pure."""

from __future__ import annotations

__all__ = ["page_of"]

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def page_of(host: str, port: int, *, secure: bool = False) -> str:
    """The page's address on the parent's own machine, or on the host that the parent listens on.

    Args:
        host: an address or a name.
        secure: whether the parent speaks TLS.
    """
    host = _ANY.get(host, host)
    shown = f"[{host}]" if ":" in host else host
    return f"http{'s' * secure}://{shown}:{port}/"
