"""An authority that signs certificates for a test, by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made by the openssl command"
)

_CONFIGURATION = """
[ca]
default_ca = test
[test]
database = index.txt
serial = serial
new_certs_dir = .
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
[req]
distinguished_name = name
prompt = no
[name]
commonName = test
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
"""


@dataclass(frozen=True)
class Signed:
    """A certificate and its key, as files."""

    certificate: str
    key: str

    def settings(self) -> dict[str, str]:
        """What a parent's section says of them."""
        return {"certificate_file": self.certificate, "key_file": self.key}


class Authority:
    """Signs certificates in a folder of its own, made here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "openssl.cnf").write_text(_CONFIGURATION)
        (folder / "index.txt").touch()
        self._request("ca")
        self._openssl(
            "x509 -req -in ca.csr -signkey ca.key -days 30 "
            "-extfile openssl.cnf -extensions authority -out ca.pem"
        )
        #: The authority's own certificate, for whoever is to trust it.
        self.file = str(folder / "ca.pem")

    def sign(self, *names: str, begins: float = -1.0, ends: float = 1.0) -> Signed:
        """A certificate for these names, `DNS:…` or `IP:…`.

        It is valid from `begins` to `ends`, in days from now.
        """
        stem = f"{len(list(self._folder.iterdir()))}"
        self._request(stem)
        (self._folder / f"{stem}.ext").write_text(
            f"subjectAltName = {', '.join(names)}\n"
            "authorityKeyIdentifier = keyid\nextendedKeyUsage = serverAuth\n"
        )
        dates = [
            f"{datetime.now(UTC) + timedelta(days=days):%Y%m%d%H%M%SZ}" for days in (begins, ends)
        ]
        self._openssl(
            "ca -batch -notext -create_serial -config openssl.cnf -cert ca.pem -keyfile ca.key "
            f"-in {stem}.csr -extfile {stem}.ext "
            f"-startdate {dates[0]} -enddate {dates[1]} -out {stem}.pem"
        )
        return Signed(str(self._folder / f"{stem}.pem"), str(self._folder / f"{stem}.key"))

    def encrypt(self, key: str) -> str:
        """The key with a password, as another file."""
        self._openssl(f"ec -in {key} -aes256 -passout pass:secret -out {key}.encrypted")
        return f"{key}.encrypted"

    def _request(self, stem: str) -> None:
        self._openssl(f"ecparam -name prime256v1 -genkey -noout -out {stem}.key")
        self._openssl(f"req -new -config openssl.cnf -key {stem}.key -out {stem}.csr")

    def _openssl(self, arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments.split()],
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
