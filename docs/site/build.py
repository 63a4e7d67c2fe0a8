"""`python -m docs.site.build FOLDER`: the site of this tree and, in FOLDER/vX.Y.Z, of each release.

A release is a tag `vX.Y.Z` of git. Without any there is no menu of versions.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from docs.site.repository import ROOT


def releases() -> list[str]:
    """The tags of git, the newest first; none in a tree without git."""
    try:
        return _git("tag", "--list", "v*.*", "--sort=-version:refname").decode().split()
    except (OSError, subprocess.CalledProcessError):
        return []


def _git(*arguments: str) -> bytes:
    return subprocess.run(
        ["/usr/bin/env", "git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout


def build(tree: Path, site: Path, here: str, tags: list[str]) -> None:
    """Builds the site of a tree, with a menu of versions.

    Args:
        here: the release of the tree; empty for this one, in which a warning is an error.
    """
    variables = os.environ | {"RELEASES": " ".join(tags), "RELEASE": here}
    strict = [] if here else ["--fail-on-warning", "--keep-going"]
    folders = ["-c", "docs/site", "-d", "build/docs-trees", "build/docs", str(site)]
    for command in (
        ["docs.site", "build/docs"],
        ["sphinx", "--quiet", "--fresh-env", *strict, *folders],
    ):
        subprocess.run([sys.executable, "-m", *command], cwd=tree, env=variables, check=True)


def main(site: Path) -> int:
    """Builds all of them; returns the exit code."""
    tags = releases()
    try:
        build(ROOT, site, "", tags)
        for tag in tags:
            with tempfile.TemporaryDirectory() as tree:
                with tarfile.open(fileobj=io.BytesIO(_git("archive", tag))) as archive:
                    archive.extractall(tree, filter="data")
                build(Path(tree), site / tag, tag, tags)
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
