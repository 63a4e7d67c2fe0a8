"""Errors of a user's own code, in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from genkidama.runtime.user_errors import (
    describe_error,
    describe_exit,
    is_user_error,
    print_user_traceback,
)


def raised(code: str, file: str = "my_env.py") -> Exception:
    """What a user's code in this file raises."""
    try:
        exec(compile(code, file, "exec"), {"json": json})
    except Exception as error:
        return error
    raise AssertionError("it raises nothing")


def test_the_innermost_line_of_the_users_own_code_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = str(tmp_path / "my_env.py")
    error = raised("def step():\n    json.loads('{')\nstep()", file)
    assert describe_error(error).startswith("JSONDecodeError: Expecting property name")
    assert describe_error(error).endswith(" (my_env.py:2, in step)")  # not a line of json's
    assert describe_error(raised("\n\nraise KeyError('my bug')", file)) == (
        "KeyError: 'my bug' (my_env.py:3)"
    )
    assert describe_error(raised("raise ValueError('two\\nlines')", "/far/away.py")) == (
        "ValueError: two lines (/far/away.py:1)"
    )


def test_what_no_user_wrote_has_no_place() -> None:
    try:
        json.loads.__call__("{")
    except ValueError as error:
        assert "test_user_errors.py" in describe_error(error)
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
        assert (
            describe_error(error).startswith("JSONDecodeError: ")
            and "(" not in describe_error(error)[-3:]
        )
        assert not is_user_error(error)


def test_a_file_that_is_no_python_is_named_once() -> None:
    error = raised("def", "/far/wrong.py")
    assert describe_error(error) == "SyntaxError: invalid syntax (/far/wrong.py:1)"


def test_an_error_that_a_users_error_has_caused_is_the_users(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = RuntimeError("cannot be built")
    assert not is_user_error(error)
    print_user_traceback(error)
    assert capsys.readouterr().err == ""
    error.__cause__ = raised("raise KeyError('my bug')")
    assert is_user_error(error)
    print_user_traceback(error)
    assert 'File "my_env.py", line 1' in capsys.readouterr().err
    turning = RuntimeError("again")
    turning.__cause__ = turning
    assert not is_user_error(turning)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "exit code 3"),
        (None, "exit code None"),
        (-9, "killed (SIGKILL), perhaps for want of memory"),
        (-11, "killed (SIGSEGV)"),
        (-300, "killed (signal 300)"),
    ],
)
def test_an_exit_code_says_what_ended_a_process(code: int | None, words: str) -> None:
    assert describe_exit(code) == words
