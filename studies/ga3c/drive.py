"""GA3C and other backends driven as a child does, but exchanging with nobody."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import time
from typing import Any

import psutil

from benchmarks.processes import ROOT
from genkidama.child.backend import Backend, make_backend
from genkidama.config.experiment import Experiment
from genkidama.plugins.ga3c.adjustment import Measurement
from genkidama.plugins.ga3c.backend import GA3C

#: Seconds before anything is counted.
WARM = 6.0


def experiment(
    example: str = "pong", width: int = 1, device: str = "cpu", **changes: Any
) -> Experiment:
    """The example with the document's settings, at this width, without the dynamic adjustment."""
    settings = Experiment.load(ROOT / f"examples/atari/{example}.toml").with_settings(
        {
            "network.convolutions": [[16 * width, 8, 4], [32 * width, 4, 2]],
            "network.hidden": [256 * width],
            "ga3c.dynamic": False,
            "ga3c.predictors": 1,
            "ga3c.trainers": 1,
            "ga3c.device": device,
            "child.exchange_seconds": 1.0,
        }
    )
    return settings.with_settings({key.replace("__", "."): value for key, value in changes.items()})


async def _drive(backend: Backend, seconds: float) -> dict[str, float]:
    """Trains for a while. Returns steps and measures a second, from the end of the warm-up on."""
    try:
        await backend.startup()
        await backend.begin(None)
        began, windows, reports = 0.0, [], []
        warm, before = time.perf_counter() + WARM, {}
        while True:
            await backend.due()
            work = backend.take_work()
            backend.release()
            now = time.perf_counter()
            if began:
                windows.append({**work.measures, **use_of_gpu(backend)})
                if work.steps:
                    reports.append((now, work.steps))
                if now - began >= seconds:
                    break
            elif now >= warm:
                began, before = now, cpu_seconds(backend)
        # Steps are reported some hundred at a time. Only the steps between the first and the last
        # report count.
        told = sum(steps for _, steps in reports[1:])
        result = {
            "steps": told / (reports[-1][0] - reports[0][0]) if len(reports) > 1 else math.nan
        }
        for name in dict.fromkeys(name for window in windows for name in window):
            # A window without an update has no losses, and NaN is no figure.
            found = [window.get(name, math.nan) for window in windows]
            values = [value for value in found if not math.isnan(value)]
            result[name] = sum(values) / max(1, len(values))
        for name, spent in cpu_seconds(backend).items():
            result[f"{name} µs"] = (
                (spent - before[name]) / (now - began) / max(1e-9, result["pps"]) * 1e6
            )
        return result
    finally:
        await backend.shutdown()


def cpu_seconds(backend: Backend) -> dict[str, float]:
    """User and system time of GA3C's agents and of its engine, while they live."""
    if not isinstance(backend, GA3C):
        return {}
    assert backend._engine is not None
    pids = {"agents": backend.pids, "engine": [backend._engine.pid]}
    return {
        name: sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in numbers)
        for name, numbers in pids.items()
    }


def drive(settings: Experiment, seconds: float) -> dict[str, float]:
    return asyncio.run(_drive(make_backend(settings, cores(), "benchmark"), seconds))


def cores() -> int:
    return len(os.sched_getaffinity(0))


def use_of_gpu(backend: Backend) -> dict[str, float]:
    """The GPU's utilization in percent, as its driver reports it; nothing without one."""
    if not (isinstance(backend, GA3C) and backend.experiment.ga3c.device.startswith("cuda")):
        return {}
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):  # torch needs no such program
        return {}
    return {"gpu": float(found.split()[0])}


def adjust(settings: Experiment, windows: int) -> list[Measurement]:
    """What the dynamic adjustment measures in so many windows; the last accepted is where it is."""
    backend = GA3C(settings, cores(), "benchmark")

    async def run() -> list[Measurement]:
        try:
            await backend.startup()
            await backend.begin(None)
            while backend.adjustment is None or len(backend.adjustment.trace) < windows:
                await backend.due()
                backend.take_work()
                backend.release()
            return backend.adjustment.trace
        finally:
            await backend.shutdown()

    return asyncio.run(run())
