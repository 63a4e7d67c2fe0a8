"""Settings of all tests: hypothesis tries the same examples every time, so that a red test stays red until somebody mends it."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("ci")
