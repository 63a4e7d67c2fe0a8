"""A certificate and tokens on a disk."""

from __future__ import annotations

from pathlib import Path

from genkidama.cluster_settings import ParentSettings
from genkidama.doctor import parent_machine
from genkidama.doctor.judgements.check import Check
from tests.certificates import Authority, Signed, needs_openssl
from tests.doctor.parents import TOKEN


@needs_openssl
def test_a_certificate_on_a_disk(tmp_path: Path, authority: Authority, signed: Signed) -> None:
    def found(pair: Signed) -> Check:
        (check,) = parent_machine.certificate(ParentSettings(**pair.settings()))
        assert check.status == "ok" or check.advice
        return check

    assert found(signed) == Check(
        "certificate", "ok", "TLSv1.3, certificate for 127.0.0.1, localhost, 90 days left"
    )
    soon = found(authority.sign("DNS:pi", ends=10))
    assert soon.status == "warning" and "10 days left" in soon.found
    over = found(authority.sign("DNS:pi", begins=-9, ends=-1))
    assert over.status == "failed" and "certificate has expired" in over.found
    nameless = found(authority.sign("email:pi@example.org"))
    assert nameless.status == "failed" and "names no host" in nameless.found
    mixed = found(Signed(signed.certificate, authority.sign("DNS:pi").key))
    assert mixed.status == "failed" and "the key is not the certificate's" in mixed.found
    absent = found(Signed(str(tmp_path / "none.pem"), signed.key))
    assert absent.status == "failed" and "No such file" in absent.found
    assert (
        parent_machine.certificate(None)[0].status
        == parent_machine.certificate(ParentSettings())[0].status
        == "skipped"
    )


def test_tokens_on_a_disk(tmp_path: Path) -> None:
    def found(text: str, mode: int = 0o600) -> Check:
        file = tmp_path / "tokens"
        file.write_text(text)
        file.chmod(mode)
        return parent_machine.tokens(ParentSettings(tokens_file=str(file)))[0]

    assert found(f"pi-1 {TOKEN}\n* {TOKEN}2\n") == Check(
        "tokens", "ok", "2 names, any name among them"
    )
    assert found(f"pi-1 {TOKEN}\n", 0o644).advice == f"chmod o-r {tmp_path / 'tokens'}"
    assert found("# nobody\n").status == "warning"
    assert found("pi-1\n").status == "failed"
    assert (
        parent_machine.tokens(ParentSettings(tokens_file=str(tmp_path / "none")))[0].status
        == "failed"
    )
    assert parent_machine.tokens(None)[0].status == "warning"
