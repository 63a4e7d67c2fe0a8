"""Security's notes are held to the code: a parent and a child can use what their commands make."""

from __future__ import annotations

import re
import ssl
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from genkidama.child import transport
from genkidama.child.child import Child
from genkidama.child.transport import read_token
from genkidama.config.role import Role
from tests.certificates import needs_openssl
from tests.helpers import ROOT, Serving, constant, running
from tests.texts import code_blocks

MAKING, STARTING = code_blocks("docs/notes/certificates.md", "bash")

#: The tests that hold each sentence of the list of what is possible at worst, by its beginning.
HELD = {
    "A child's token:": [
        "server/rules/test_hostile.py::test_no_number_of_finite_pushes_makes_a_parent_infinite",
        "server/rules/test_hostile.py::test_all_rules_that_take_vectors_are_here",
        "parent/test_authentication.py::test_a_token_of_another_name_is_refused",
        "parent/test_connections.py::test_two_children_share_the_weights",
    ],
    "By false steps,": [
        "server/test_trial.py::test_it_is_over_when_a_count_is_reached",
        "server/test_trial.py::test_it_is_over_at_a_mean_return_over_a_full_window",
    ],
    "It cannot end a run otherwise:": [
        "server/test_parameter_server.py::test_without_the_proof_of_the_first_part_a_part_goes_on",
        "server/test_parameter_server.py"
        "::test_the_first_part_says_that_the_run_is_over_and_proves_it",
        "plugins/actors/test_learner_process.py"
        "::test_one_child_does_not_end_a_run_by_rows_that_kill_the_learner",
    ],
    "An owner's token or cookie:": [
        "server/test_command.py::test_stop_ends_the_run_for_all_and_says_who",
        "plugins/dashboard/test_endpoint.py::test_with_tokens_an_owner_has_one_of_its_own",
    ],
    "It pushes no weights": ["server/test_command.py::test_another_word_is_no_command"],
    "A viewer's token or cookie:": [
        "plugins/dashboard/test_endpoint.py::test_what_is_withdrawn_ends_the_pages_that_are_open",
        "plugins/dashboard/test_viewers.py::test_a_viewers_token_shows_and_a_childs_does_not",
    ],
    "It changes nothing,": [
        "plugins/dashboard/test_routes.py::test_nobody_else_steers_it",
        "plugins/dashboard/test_endpoint.py::test_viewers_take_no_childs_place_and_are_few",
        "plugins/dashboard/test_endpoint.py::test_a_viewer_says_nothing",
        "plugins/dashboard/test_endpoint.py::test_the_feed_takes_a_viewers_token_and_a_child_its_own",
    ],
    "No token:": [
        "server/test_limits.py::test_a_connection_comes_in_exactly_if_there_is_room",
        "parent/test_acceptor.py::test_one_address_gets_so_many_connections",
        "plugins/dashboard/test_endpoint.py::test_no_request_makes_a_traceback_and_none_fills_the_log",
    ],
    "A child's password of the embedded replay:": [
        "plugins/gorila/test_embedded_engine.py"
        "::test_a_child_may_do_what_a_ring_needs_and_nothing_else",
        "plugins/gorila/test_embedded_engine.py"
        "::test_an_engine_that_cannot_live_ends_the_run_with_its_own_words",
    ],
    "It cannot stop or empty the engine": [
        "plugins/gorila/test_embedded_engine.py"
        "::test_a_child_may_do_what_a_ring_needs_and_nothing_else",
    ],
    "The parent's place:": ["child/test_child.py::test_a_child_imports_what_is_on_its_list"],
    "It gets no other module imported,": [
        "child/test_child.py::test_a_child_imports_nothing_that_its_owner_does_not_allow",
        "runtime/test_import_strings.py::test_what_permission_lets_pass_imports_nothing_beyond_it",
        "protocol/test_session.py::test_a_reply_that_makes_no_sense_changes_nothing",
    ],
    "A file,": [
        "runs/test_evaluation.py::test_an_evaluation_imports_what_is_allowed_and_nothing_else",
    ],
    "A damaged file": [
        "runs/test_evaluation.py::test_what_a_file_names_is_imported_only_if_it_is_allowed",
        "runs/test_checkpoint.py::test_wrong_metadata",
        "plugins/dashboard/test_run_browser.py::test_a_damaged_run_is_one_row_and_a_long_one_keeps_nobody_waiting",
    ],
}


def test_each_sentence_of_what_is_possible_at_worst_has_its_test() -> None:
    text = (ROOT / "docs/notes/threats.md").read_text()
    section = text.partition("**At worst**")[2].partition("\n#")[0]
    items = " ".join(section.split()).replace("*", "").split(" - ")[1:]
    sentences = [sentence for item in items for sentence in re.split(r"(?<=[.)]) (?=[A-Z])", item)]
    assert len(sentences) == len(HELD)
    for sentence, (beginning, tests) in zip(sentences, HELD.items(), strict=True):
        assert sentence.startswith(beginning)
        for test in tests:
            path, _, name = test.partition("::")
            assert re.search(rf"def {name}\(", (ROOT / "tests" / path).read_text()), test


@needs_openssl
async def test_what_is_made_by_hand_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GENKIDAMA_TOKEN", raising=False)
    done = subprocess.run(
        ["bash", "-e"], input=MAKING, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "certificate.pem: OK" in done.stdout
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    make = transport.make_context

    def strict(ca_file: str) -> ssl.SSLContext:
        """As Python does by itself from 3.13 on."""
        context = make(ca_file)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(transport, "make_context", strict)
    files = {
        f"{key}_file": str(tmp_path / name)
        for key, name in (
            ("tokens", "tokens"),
            ("certificate", "certificate.pem"),
            ("key", "key.pem"),
        )
    }
    token, authority = (
        read_token(Role(token_file=str(tmp_path / "token-pi-02"))),
        str(tmp_path / "ca.pem"),
    )
    async with running(constant(parent=files), tmp_path / "run") as parent:
        for host in ("127.0.0.1", "localhost"):
            async with Serving(
                Child(
                    f"wss://{host}:{parent.address[1]}",
                    name="pi-02",
                    token=token,
                    ca_file=authority,
                )
            ) as child:
                await child.exchanged(2)
        assert parent.server.trial.version >= 2
        assert not parent.server.refusals


def test_what_is_started_knows_these_options(capsys: pytest.CaptureFixture[str]) -> None:
    lines = STARTING.splitlines()
    assert len(lines) == 2
    for line in lines:
        module, *rest = line.removeprefix("python -m ").split()
        with pytest.raises(SystemExit):
            import_module(f"{module}.__main__").main(["--help"])
        said = capsys.readouterr().out
        for option in (word for word in rest if word.startswith("--")):
            assert f"{option} " in said
