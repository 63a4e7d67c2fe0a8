"""A child that learns nothing, for tests of parents."""

from __future__ import annotations

from benchmarks.fake_child import SIGNATURE as SIGNATURE
from benchmarks.fake_child import FakeChild as FakeChild
from benchmarks.fake_child import vector as vector
