"""A file that is replaced is there, whole, whatever happens."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from genkidama.errors import EnvironmentFailure
from genkidama.runtime.files import (
    hint,
    make_folder,
    remove_scratch,
    scratch_folder,
    write_atomically,
)
from tests.helpers import ROOT


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"old", b"", b"new"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_two_at_once_leave_the_file_of_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    concurrent, fsync = {"concurrent": True}, os.fsync
    other = threading.Thread(target=write_atomically, args=(path, b"short"), kwargs=concurrent)

    def meanwhile(descriptor: int) -> None:
        if not other.ident:
            other.start()
            other.join()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_atomically(path, b"a longer one", concurrent=True)
    assert path.read_bytes() == b"a longer one" and list(tmp_path.iterdir()) == [path]


def test_the_part_that_a_killed_process_wrote_does_not_stay(tmp_path: Path) -> None:
    path = tmp_path / "file"
    code = (
        "import os, sys; from pathlib import Path; from genkidama.runtime.files import *\n"
        "os.fsync = lambda _: os._exit(9)\n"
        "write_atomically(Path(sys.argv[1]), b'half')\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT)
    assert killed.returncode == 9 and len(os.listdir(tmp_path)) == 1
    write_atomically(path, b"whole")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_what_goes_wrong_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(
        EnvironmentFailure, match=r"file: cannot be written: No space left on device; free space"
    ):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_both_the_file_and_its_name_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut is what nobody can test; the order of the calls is."""
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        calls.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        calls.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_atomically(tmp_path / "file", b"new")
    assert calls == ["file", "replace", "folder"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"nowhere/file: cannot be written: No such file"):
        write_atomically(tmp_path / "nowhere" / "file", b"new")


def test_the_way_out_is_that_of_the_reason(tmp_path: Path) -> None:
    words = {number: hint(OSError(number, "")) for number in errno.errorcode}
    assert "free space" in words[errno.ENOSPC] and "writable" in words[errno.EROFS]
    assert "user" in words[errno.EACCES] and "ulimit -n" in words[errno.EMFILE]
    assert [number for number, way in words.items() if "free space" in way] == [
        errno.ENOSPC,
        errno.EDQUOT,
    ]
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(EnvironmentFailure, match=r"cannot be made: Not a directory; move the"):
            make_folder(path)


def test_what_a_killed_process_has_left_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else: neither what a living process has, nor what is none of ours."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import time; from genkidama.runtime.files import scratch_folder\n"
        "print(scratch_folder(), flush=True); time.sleep(60)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    (tmp_path / "genkidama-foreign").mkdir()
    (tmp_path / "genkidama-file").touch()
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        theirs = Path(owner.stdout.readline().strip())
        (theirs / "nursery").touch()
        ours = scratch_folder()
        assert theirs.exists() and oct(ours.stat().st_mode)[-3:] == "700"
        owner.kill()
    again = scratch_folder()
    assert not theirs.exists() and ours.exists()
    for each in (ours, again):
        remove_scratch(each)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "genkidama-file",
        "genkidama-foreign",
    ]
