"""A parent's own certificate: it is made once, and its fingerprint is openssl's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runtime.certificate import default_folder, fingerprint_of, make_certificate
from tests.certificates import needs_openssl


@needs_openssl
def test_it_is_made_once_and_has_openssls_fingerprint(tmp_path: Path) -> None:
    certificate, key = tmp_path / "new" / "certificate.pem", tmp_path / "new" / "key.pem"
    make_certificate(certificate, key)
    assert key.stat().st_mode & 0o777 == 0o600
    text = certificate.read_bytes()
    make_certificate(certificate, key)
    assert certificate.read_bytes() == text
    said = subprocess.run(
        ["openssl", "x509", "-in", certificate, "-noout", "-fingerprint", "-sha256"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert fingerprint_of(certificate) == said.strip().partition("=")[2].replace(":", "").lower()
    with pytest.raises(ConfigurationError, match="holds no PEM certificate"):
        fingerprint_of(key)


def test_without_openssl_the_way_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EnvironmentFailure, match="apt install openssl"):
        make_certificate(tmp_path / "certificate.pem", tmp_path / "key.pem")
    with pytest.raises(ConfigurationError, match="`genkidama parent` makes it"):
        fingerprint_of(tmp_path / "certificate.pem")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "genkidama"
