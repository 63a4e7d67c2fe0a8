"""The wheelhouse: what is taken, kept, refused, and that nothing changes without a reason."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deploy import wheelhouse
from deploy.wheelhouse import (
    MANIFEST,
    Failure,
    Pin,
    Target,
    check_complete,
    fitting,
    is_for,
    put_in_place,
    read_manifest,
    read_pins,
)
from tests.helpers import ROOT

PI = Target("child", "aarch64", "3.11")
PC = Target("child", "x86_64", "3.13")


def run(out: Path, *arguments: str, status: int = 0, **environment: str) -> list[str]:
    """The program's standard output, or if it has to fail its error, in lines."""
    command = [sys.executable, str(ROOT / "deploy/wheelhouse.py"), "--out", str(out), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )
    assert done.returncode == status, done.stdout + done.stderr
    return (done.stderr if status else done.stdout).splitlines()


@pytest.mark.parametrize(
    ("wheel", "pin", "target", "fits"),
    [
        (
            "numpy-2.4.6-cp311-cp311-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
            Pin("numpy", "2.4.6"),
            PI,
            True,
        ),
        (
            "numpy-2.4.6-cp313-cp313-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
            Pin("numpy", "2.4.6"),
            PI,
            False,
        ),
        ("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl", Pin("numpy", "2.4.6"), PI, False),
        ("numpy-2.4.5-cp311-cp311-manylinux_2_28_aarch64.whl", Pin("numpy", "2.4.6"), PI, False),
        (
            "numpy-2.4.6-cp311-cp311-manylinux_2_39_aarch64.whl",
            Pin("numpy", "2.4.6"),
            PI,
            False,
        ),  # newer than Debian 12's glibc
        ("numpy-2.4.6-cp311-cp311-macosx_14_0_arm64.whl", Pin("numpy", "2.4.6"), PI, False),
        (
            "safetensors-0.8.0-cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            Pin("safetensors", "0.8.0"),
            PC,
            True,
        ),
        (
            "websockets-17.4-cp313-cp313-manylinux1_x86_64.manylinux_2_5_x86_64.whl",
            Pin("websockets", "17.4"),
            PC,
            True,
        ),
        (
            "box2d_py-2.3.8-cp311-abi3-manylinux_2_28_aarch64.whl",
            Pin("box2d-py", "2.3.8"),
            PI,
            True,
        ),
        (
            "box2d_py-2.3.8-cp311-cp311-linux_aarch64.whl",
            Pin("box2d-py", "2.3.8"),
            PI,
            True,
        ),  # built on a Raspberry Pi
        (
            "torch-2.13.0+cpu-cp313-cp313-manylinux_2_28_x86_64.whl",
            Pin("torch", "2.13.0"),
            PC,
            True,
        ),
        ("structlog-26.1.0-py3-none-any.whl", Pin("structlog", "26.1.0"), PI, True),
        ("box2d-py-2.3.8.tar.gz", Pin("box2d-py", "2.3.8"), PI, False),
    ],
)
def test_a_wheel_is_taken_where_it_can_be_installed(
    wheel: str, pin: Pin, target: Target, fits: bool
) -> None:
    assert is_for(wheel, pin, target) is fits


def test_wheels_of_ones_own_must_fit(tmp_path: Path) -> None:
    for name in ("mine-1.0-py3-none-any.whl", "mine-1.0-cp311-cp311-linux_x86_64.whl", "mine.whl"):
        (tmp_path / name).touch()
    assert fitting(tmp_path / "mine-1.0-py3-none-any.whl", PI).is_file()
    for name in (
        "mine-1.0-cp311-cp311-linux_x86_64.whl",
        "mine.whl",
        "missing-1.0-py3-none-any.whl",
    ):
        with pytest.raises(
            Failure, match=rf"--also .*{name}: not a wheel for aarch64 and Python 3\.11"
        ):
            fitting(tmp_path / name, PI)


def test_markers_are_the_targets_and_not_this_machines() -> None:
    text = (
        'a==1 ; platform_machine == "aarch64"\na==2 ; platform_machine != "aarch64"\n'
        'b==3 ; python_version < "3.12"\nc==4 # for a\n'
    )
    assert {pin.name: pin.version for pin in read_pins(text, PI).values()} == {
        "a": "1",
        "b": "3",
        "c": "4",
    }
    assert {pin.name: pin.version for pin in read_pins(text, PC).values()} == {"a": "2", "c": "4"}


def test_torch_is_for_children_alone_and_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    plain, tensors = PI, Target("child", "aarch64", "3.11", torch=True)
    assert (plain.folder, tensors.folder) == (
        "child-aarch64-py311",
        "child-aarch64-py311-with-torch",
    )
    assert "torch" not in read_pins(plain.requirements, plain)
    assert read_pins(tensors.requirements, tensors)["torch"] == Pin("torch", "2.9.1")
    target = ["--role", "parent", "--platform", "x86_64", "--python", "3.11"]
    with pytest.raises(SystemExit):
        wheelhouse.main(["--out", "x", *target, "--with-torch"])
    assert "--with-torch: only a child" in capsys.readouterr().err


def test_a_torch_with_cuda_is_refused_before_it_is_downloaded() -> None:
    cuda = 'nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"'
    other = 'optree>=0.13.0; extra == "optree"'
    metadata = [{"name": "torch", "version": "2.13.0", "requires_dist": ["filelock", cuda, other]}]
    with pytest.raises(
        Failure,
        match=r"is a build with CUDA \(nvidia-cudnn-cu13, …\).*--pip-flags",
    ):
        check_complete(metadata, {"filelock"}, PC)
    check_complete(metadata, {"filelock", "nvidia-cudnn-cu13"}, PC)


def test_a_missing_pin_is_named_with_its_file() -> None:
    metadata = [{"name": "sympy", "version": "1", "requires_dist": ["mpmath<1.4"]}]
    with pytest.raises(
        Failure,
        match=r"sympy 1 for aarch64 and Python 3.11 needs mpmath: pin it in child/requirements.txt",
    ):
        check_complete(metadata, {"sympy"}, PI)
    check_complete(metadata, {"sympy", "mpmath"}, PI)


def place(
    tmp_path: Path, new: dict[str, bytes], kept: dict[str, str]
) -> tuple[list[str], list[str]]:
    (tmp_path / "new").mkdir()
    for name, content in new.items():
        (tmp_path / "new" / name).write_bytes(content)
    found = put_in_place(tmp_path / "new", kept, tmp_path / "house")
    shutil.rmtree(tmp_path / "new")
    return found


def test_a_folder_gets_what_is_new_keeps_what_is_right_and_loses_the_rest(tmp_path: Path) -> None:
    house = tmp_path / "house"
    assert place(tmp_path, {"a.whl": b"1", "b.whl": b"2"}, {}) == (["a.whl", "b.whl"], [])
    assert subprocess.run(["sha256sum", "--check", "--quiet", MANIFEST], cwd=house).returncode == 0
    before = (house / MANIFEST).stat().st_mtime_ns

    assert place(tmp_path, {"b.whl": b"2"}, read_manifest(house)) == ([], [])
    assert (house / MANIFEST).stat().st_mtime_ns == before

    (house / "stale.whl").touch()
    assert place(tmp_path, {"c.whl": b"3"}, {"a.whl": hashlib.sha256(b"1").hexdigest()}) == (
        ["c.whl"],
        ["b.whl", "stale.whl"],
    )
    assert sorted(path.name for path in house.iterdir()) == ["a.whl", "c.whl", MANIFEST] and list(
        read_manifest(house)
    ) == [
        "a.whl",
        "c.whl",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--role", "child", "--platform", "armv7l", "--python", "3.11"],
            "invalid choice: 'armv7l'",
        ),
        (["--role", "child", "--platform", "aarch64", "--python", "3.9"], "invalid choice: '3.9'"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, arguments: list[str], said: str) -> None:
    assert said in run(tmp_path, *arguments, status=2)[-1]


def test_without_pythons_headers_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheelhouse.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(Failure, match=r"Python.h: not there.*apt install python3-dev"):
        wheelhouse.python_headers()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wheelhouse_is_made_once_and_mended(tmp_path: Path) -> None:
    """With PyPI for the first run, and without any index afterwards."""
    parent = ("--role", "parent", "--platform", "aarch64", "--python", "3.13")
    house = tmp_path / "parent-aarch64-py313"
    first = run(tmp_path, *parent)
    wheels = sorted(path.name for path in house.glob("*.whl"))
    assert sorted(first[:-1]) == [f"+ {name}" for name in wheels]
    assert first[-1].startswith(f"changed: {house} ({len(wheels)} wheels, ")
    needed = ("genkidama_rl", "numpy", "optuna", "websockets")  # of the parent's; a child has more
    assert all(any(name.startswith(f"{one}-") for name in wheels) for one in needed)
    assert not any(name.startswith("torch-") for name in wheels)
    assert subprocess.run(["sha256sum", "--check", "--quiet", MANIFEST], cwd=house).returncode == 0
    manifest = (house / MANIFEST).read_bytes()
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}

    assert run(tmp_path, *parent, **offline) == [f"un{first[-1]}"]

    # The same sources give the same bytes, wherever and whenever they are built.
    shutil.rmtree(tmp_path / ".built")
    assert (
        run(tmp_path, *parent, **offline) == [f"un{first[-1]}"]
        and (house / MANIFEST).read_bytes() == manifest
    )

    # A wheel of one's own.
    mine = tmp_path / "mine-1.0-py3-none-any.whl"
    mine.write_bytes(b"mine")
    assert run(tmp_path, *parent, "--also", str(mine), **offline)[:-1] == [f"+ {mine.name}"]
    assert run(tmp_path, *parent, **offline)[:-1] == [f"- {mine.name}"]

    # Broken, stale and foreign files.
    own = next(house.glob("genkidama_rl-*.whl"))
    own.write_bytes(b"")
    (house / "old-1.0-py3-none-any.whl").touch()
    assert run(tmp_path, *parent, **offline)[:-1] == [f"+ {own.name}", "- old-1.0-py3-none-any.whl"]
    assert zipfile.ZipFile(own).testzip() is None and (house / MANIFEST).read_bytes() == manifest

    # What is missing cannot be had without an index, and what is there stays.
    next(house.glob("numpy-*.whl")).unlink()
    (error,) = [line for line in run(tmp_path, *parent, status=1, **offline) if "numpy" in line]
    assert (
        "numpy==" in error
        and (house / MANIFEST).read_bytes() == manifest
        and not list(tmp_path.glob(".new-*"))
    )
