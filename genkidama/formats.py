"""How numbers and errors read in a line for people. Pure."""

from __future__ import annotations

__all__ = ["bar", "duration", "megabytes", "one_line", "rate"]


def bar(share: float, width: int = 20) -> str:
    """`share` in [0, 1] as a bar of `width` characters."""
    full = round(min(1.0, max(0.0, share)) * width)
    return "█" * full + "░" * (width - full)


def duration(seconds: float) -> str:
    """Seconds as a clock shows them: `"0:42"`, `"12:05"` or `"3:07:00"`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def rate(value: float) -> str:
    """A number a second, with a decimal where it is small: `"2,950"`, `"4.2"`."""
    return f"{value:,.0f}" if value >= 10.0 else f"{value:.1f}"


def megabytes(size: int) -> str:
    """Bytes in units of 10⁶: `"31 MB"`."""
    return f"{round(size / 1e6)} MB"


def one_line(error: BaseException, length: int = 300) -> str:
    """An error's text, or else its kind, in one line of about `length` characters at most."""
    text = " ".join(f"{error}".split()) or type(error).__name__
    return text if len(text) <= length else f"{text[:length]} …"
