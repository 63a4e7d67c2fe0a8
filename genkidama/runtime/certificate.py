"""A parent's own certificate, and by what a child knows it: its fingerprint.

The certificate signs itself. No authority is needed, because a child that is given the fingerprint
trusts this certificate and no other.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runtime.files import make_folder

__all__ = ["default_folder", "fingerprint_of", "make_certificate"]

#: A child with a wrong clock may join, and nobody has to think of a renewal: what counts is the
#: fingerprint.
_DAYS = 36_500


def default_folder() -> Path:
    """Where this user's certificate, key and tokens lie: `~/.config/genkidama`."""
    above = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(above) if above else Path.home() / ".config") / "genkidama"


def make_certificate(certificate: Path, key: Path) -> None:
    """Makes a key and its certificate, unless they are there. Only this user may read the key.

    Raises:
        EnvironmentFailure: there is no `openssl`, or it fails.
    """
    if certificate.exists() and key.exists():
        return
    openssl = shutil.which("openssl")
    if openssl is None:
        raise EnvironmentFailure(
            f"{certificate}: cannot be made: there is no command openssl; "
            "install it (apt install openssl), or give --certificate-file and --key-file"
        )
    make_folder(certificate.parent)
    os.close(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600))
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", str(_DAYS), "-subj", "/CN=Genkidama parent"]
    command += ["-addext", f"subjectAltName=DNS:{socket.gethostname()},DNS:localhost"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise EnvironmentFailure(f"{certificate}: cannot be made: openssl: {last}")


def fingerprint_of(certificate: Path) -> str:
    """SHA-256 of the first certificate in a PEM file, in 64 hexadecimal digits.

    Raises:
        ConfigurationError: the file cannot be read, or holds none.
    """
    try:
        text = certificate.read_text(encoding="ascii")
        begin = text.index("-----BEGIN CERTIFICATE-----")
        end = text.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")
        found = ssl.PEM_cert_to_DER_cert(text[begin:end])
    except FileNotFoundError:
        raise ConfigurationError(
            f"{certificate}: no such file; `genkidama parent` makes it when it starts, "
            "or give --certificate-file"
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"{certificate}: cannot be read: {error.strerror}; give --certificate-file"
        ) from None
    except ValueError:
        raise ConfigurationError(
            f"{certificate}: holds no PEM certificate; give --certificate-file"
        ) from None
    return hashlib.sha256(found).hexdigest()
