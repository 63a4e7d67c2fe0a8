"""The steps of a release that nobody should do by hand (docs/notes/releasing.md).

    python3 deploy/release.py tag 0.2.0                # versions, changelog, commit, tag, notes
    python3 deploy/release.py notes 0.2.0              # the changelog's section of a version
    python3 deploy/release.py source FOLDER [ADDRESS]  # the commit as packages are built from it

The repository's address stands in no file, since a fork has another one. `source` writes it into a
copy: as `[project.urls]`, and before each link of the README, which the index shows without the
repository.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import time
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Files that name the version, and the line that does.
VERSIONS = {
    "genkidama/_version.py": r'(?m)^(__version__ = ")[^"]+(")',
    "CITATION.cff": r"(?m)^(version: )\S+()$",
    "deploy/conda/recipe.yaml": r'(?m)^(  version: ")[^"]+(")',
}

PICTURES = (".gif", ".png", ".svg")

_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")


def notes(changelog: str, version: str) -> str:
    """The section of a version in the changelog, without its heading."""
    found = re.search(rf"(?ms)^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog)
    if found is None:
        raise SystemExit(f"CHANGELOG.md: has no section ## {version}; write one")
    return found[1].strip() + "\n"


def whole_links(readme: str, address: str, reference: str) -> str:
    """A README whose links lead to the repository from everywhere.

    Args:
        address: the repository's, as `https://host/owner/name`.
        reference: the commit or tag that they lead to.
    """

    def whole(match: re.Match[str]) -> str:
        kind = "raw" if match[1].endswith(PICTURES) else "blob"
        return f"]({address}/{kind}/{reference}/{match[1]})"

    return _LINK.sub(whole, readme)


def urls(address: str, reference: str) -> str:
    """The table `[project.urls]` for that repository."""
    pages = {
        "Repository": address,
        "Issues": f"{address}/issues",
        "Documentation": f"{address}/blob/{reference}/docs/first-run.md",
        "Changelog": f"{address}/blob/{reference}/CHANGELOG.md",
    }
    return "".join(["\n[project.urls]\n", *(f'{name} = "{url}"\n' for name, url in pages.items())])


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


def source(folder: Path, address: str = "") -> None:
    """Unpacks the commit into an empty folder, with whole addresses if there is one."""
    with tarfile.open(fileobj=BytesIO(git("archive", "HEAD"))) as archive:
        archive.extractall(folder, filter="data")
    if not address:
        print("no REPOSITORY=https://…: the README's links stay relative, without [project.urls]")
        return
    address = address.removesuffix(".git").rstrip("/")
    if not re.fullmatch(r"https://[^/\s]+/\S+", address):
        raise SystemExit(f"REPOSITORY={address}: expected https://host/owner/name")
    tags = git("tag", "--points-at", "HEAD").decode().split()
    reference = tags[0] if tags else git("rev-parse", "HEAD").decode().strip()
    readme, project = folder / "README.md", folder / "pyproject.toml"
    readme.write_text(whole_links(readme.read_text("utf-8"), address, reference), "utf-8")
    project.write_text(project.read_text("utf-8") + urls(address, reference), "utf-8")


def tag(version: str) -> None:
    """Writes the version and the changelog's heading, commits them, and tags with the notes."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        raise SystemExit(f"{version}: expected a version as 0.2.0")
    if git("status", "--porcelain"):
        raise SystemExit("there are changes; commit them first: git status")
    if f"v{version}" in git("tag").decode().split():
        raise SystemExit(f"v{version}: this tag exists; choose the next version")
    path = ROOT / "CHANGELOG.md"
    heading = f"## {version} ({time.strftime('%Y-%m-%d')})"
    changelog = path.read_text("utf-8").replace("## Unreleased", heading, 1)
    told = notes(changelog, version)  # before anything is written
    path.write_text(changelog, "utf-8")
    for name, pattern in VERSIONS.items():
        text = (ROOT / name).read_text("utf-8")
        (ROOT / name).write_text(re.sub(pattern, rf"\g<1>{version}\g<2>", text), "utf-8")
    git("commit", "--quiet", "--all", "--message", f"Version {version}")
    git("tag", "--annotate", "--cleanup=whitespace", f"v{version}", "--message",
        f"Genkidama {version}\n\n{told}")  # fmt: skip
    print(f"tagged v{version}; next: git push --follow-tags")


def main(words: list[str]) -> None:
    match words:
        case ["tag", version]:
            tag(version)
        case ["notes", version]:
            print(notes((ROOT / "CHANGELOG.md").read_text("utf-8"), version), end="")
        case ["source", folder, *address]:
            source(Path(folder), *address)
        case _:
            raise SystemExit((__doc__ or "").partition("\n\n")[2])


if __name__ == "__main__":
    main(sys.argv[1:])
