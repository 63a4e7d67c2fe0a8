"""Films, decoded again by other programs than those that wrote them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest


def decoded(path: Path) -> tuple[npt.NDArray[np.uint8], float]:
    """The pictures of a film, (n, height, width, 3), and how many seconds it takes."""
    if path.suffix == ".gif":
        image: Any = pytest.importorskip("PIL.Image").open(path)
        pictures, seconds = [], 0.0
        with image:
            for number in range(image.n_frames):
                image.seek(number)
                pictures.append(np.asarray(image.convert("RGB")))
                seconds += image.info["duration"] / 1000.0
        return np.stack(pictures), seconds
    program = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    found = subprocess.run(
        [program, "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
        capture_output=True,
        check=True,
    )
    said = found.stderr.decode()
    size = re.search(r"Video: .*?, (\d+)x(\d+)", said)
    length = re.search(r"Duration: (\d+):(\d+):([\d.]+)", said)
    assert size is not None and length is not None, said
    hours, minutes, seconds = map(float, length.groups())
    shape = (-1, int(size[2]), int(size[1]), 3)
    return np.frombuffer(found.stdout, np.uint8).reshape(
        shape
    ), seconds + 60 * minutes + 3600 * hours
