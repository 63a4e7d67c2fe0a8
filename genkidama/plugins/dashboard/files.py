"""What the page is made of: the files beside this module and plotly's JavaScript.

Files are read when they are asked for first, and kept. Only names that are in these folders are
found; a name is never joined to a path.
"""

from __future__ import annotations

import gzip
import threading
from importlib.util import find_spec
from pathlib import Path

__all__ = ["Files", "plotly"]

_STATIC = Path(__file__).parent / "static"

#: A file of fewer bytes gains little.
_LEAST_ZIPPED = 1 << 12

_ZIPPED = (".js", ".css", ".html", ".svg")


class Files:
    """Gives the page's files by their paths."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}
        self._zipped: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def read(self, name: str, zipped: bool) -> tuple[bytes, bool] | None:
        """A file, and whether it is compressed; None if there is none.

        Args:
            name: as `static/page.js` or `plotly.js`.
            zipped: whether it may be compressed.
        """
        path = self._path(name)
        if path is None:
            return None
        try:
            content = self._kept.get(name)
            if content is None:
                content = self._kept[name] = path.read_bytes()
        except OSError:
            return None
        if not zipped or not name.endswith(_ZIPPED) or len(content) < _LEAST_ZIPPED:
            return content, False
        found = self._zipped.get(name)
        if found is None:
            # Compressing takes plotly's 5 MB a quarter of a second: the first reader does not wait.
            self._zipped[name] = b""
            threading.Thread(target=self._zip, args=(name, content), daemon=True).start()
        return (found, True) if found else (content, False)

    def _zip(self, name: str, content: bytes) -> None:
        self._zipped[name] = gzip.compress(content, 6, mtime=0)

    def _path(self, name: str) -> Path | None:
        folder, _, rest = name.rpartition("/")
        if name == "plotly.js":
            return plotly()
        if folder == "static" and _STATIC.is_dir():
            return next((each for each in _STATIC.iterdir() if each.name == rest), None)
        return None


def plotly() -> Path | None:
    """Where plotly's JavaScript lies, if the extra `page` is installed."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return path if path.is_file() else None
