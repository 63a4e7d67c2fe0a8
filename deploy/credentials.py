"""The secrets of a shelf: a private certificate authority, the parent's certificate, and tokens.

Reads `{"kept": …, "parent": [NAME or IP, …], "children": [NAME, …]}` from standard input, where
`kept` is what it wrote before, or null. Writes `{"made": [what it has made anew, …],
"credentials": …}` to standard output. It keeps what is still right, so a second run changes
nothing. It writes nothing to a disk.

It runs on the controller, with the Python that runs Ansible, which has `cryptography`.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: A shelf may run for years without anybody looking at it. A run of the playbook within the last
#: months renews the certificate.
AUTHORITY_DAYS, CERTIFICATE_DAYS, RENEWAL_DAYS = 3650, 1095, 60

#: The clock of a machine without a battery, and without internet, stands where its system was made.
BEHIND = timedelta(days=3650)

Credentials = dict[str, Any]


def renew(
    kept: Credentials | None, parent: list[str], children: list[str], now: datetime
) -> tuple[list[str], Credentials]:
    """All that a shelf needs. It keeps of `kept` what is still right.

    Args:
        kept: what this function gave before.
        parent: all names and addresses under which children reach the parent.
        children: their names. It forgets every other token, so that the parent no longer admits it.
        now: with a time zone.

    Returns:
        What it has made anew, in words, and `{"authority": {certificate, key}, "parent":
        {certificate, key}, "tokens": {name: token}}`, with certificates and keys in PEM.
    """
    made: list[str] = []
    credentials: Credentials = dict(kept or {})
    if (
        "authority" not in credentials
        or _days_left(credentials["authority"], now) < CERTIFICATE_DAYS
    ):
        credentials["authority"] = _make_authority(now)
        credentials.pop("parent", None)
        made.append("certificate authority")
    if (
        "parent" not in credentials
        or _days_left(credentials["parent"], now) < RENEWAL_DAYS
        or _names(credentials["parent"]) != {str(_general_name(name).value) for name in parent}
    ):
        credentials["parent"] = _make_certificate(credentials["authority"], parent, now)
        made.append(f"certificate for {', '.join(parent)}")
    tokens = credentials.get("tokens", {})
    credentials["tokens"] = {
        name: tokens.get(name) or secrets.token_urlsafe(32) for name in children
    }
    made += [f"token for {name}" for name in children if name not in tokens]
    made += [f"no token for {name} any more" for name in tokens if name not in children]
    return made, credentials


def _make_authority(now: datetime) -> dict[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Genkidama shelf, {now:%Y-%m-%d}")])
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = (
        _begin(name, name, key, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return _in_pem(builder.sign(key, hashes.SHA256()), key)


def _make_certificate(authority: dict[str, str], names: list[str], now: datetime) -> dict[str, str]:
    signer = _certificate(authority)
    signer_key = serialization.load_pem_private_key(authority["key"].encode(), None)
    assert isinstance(signer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Genkidama parent")])
    identifier = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _begin(subject, signer.subject, key, now, CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
    )
    return _in_pem(builder.sign(signer_key, hashes.SHA256()), key)


def _begin(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEHIND)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _in_pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return {
        "certificate": certificate.public_bytes(serialization.Encoding.PEM).decode(),
        "key": key.private_bytes(*form).decode(),
    }


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _certificate(pair: dict[str, str]) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair["certificate"].encode())


def _days_left(pair: dict[str, str], now: datetime) -> float:
    return (_certificate(pair).not_valid_after_utc - now) / timedelta(days=1)


def _names(pair: dict[str, str]) -> set[str]:
    return {
        str(name.value)
        for name in _certificate(pair)
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value
    }


def main() -> int:
    given = json.load(sys.stdin)
    made, credentials = renew(
        given["kept"] or None, given["parent"], given["children"], datetime.now(UTC)
    )
    json.dump({"made": made, "credentials": credentials}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
