"""A certificate for 127.0.0.1, signed by itself."""

import base64
import ipaddress
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Authority:
    """The certificate, in PEM, and its key."""

    certificate: bytes
    key: bytes

    @property
    def encoded(self) -> str:
        """As a kubeconfig has it."""
        return base64.b64encode(self.certificate).decode()

    def context(self) -> ssl.SSLContext:
        """For a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "both.pem"
            file.write_bytes(self.key + self.certificate)
            context.load_cert_chain(file)
        return context


def make() -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fake-kubernetes")])
    start = datetime.now(UTC) - timedelta(days=1)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=30))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Authority(certificate.public_bytes(serialization.Encoding.PEM), secret)
