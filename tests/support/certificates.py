"""Certificates of clients, made by the program `openssl`."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

TLS = Path(__file__).parents[1] / "data" / "tls"
SERVER, SERVER_KEY = TLS / "certificate.pem", TLS / "key.pem"
"""What a server on 127.0.0.1 shows, which is its own authority."""

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@dataclass(frozen=True)
class Authority:
    """One that signs certificates of clients; made by `new`."""

    folder: Path
    name: str

    @classmethod
    def new(cls, folder: Path, name: str = "authority") -> Authority:
        """Make it."""
        key, file = folder / f"{name}.key", folder / f"{name}.pem"
        subject = ("-subj", f"/CN={name}")
        _openssl("req", "-x509", *_NEW_KEY, "-keyout", key, "-out", file, "-days", 9, *subject)
        return cls(folder, name)

    @property
    def certificate(self) -> Path:
        """Its own."""
        return self.folder / f"{self.name}.pem"

    def sign(self, subject: str) -> tuple[Path, Path]:
        """Certificate and key of a client, such as `/O=shop/CN=ann`."""
        base = self.folder / f"{self.name}-{quote(subject, safe='')}"
        key, asked, file = (base.with_name(base.name + end) for end in (".key", ".csr", ".pem"))
        _openssl("req", *_NEW_KEY, "-keyout", key, "-out", asked, "-subj", subject)
        ours = self.folder / f"{self.name}.key"
        by = ("-CA", self.certificate, "-CAkey", ours, "-CAcreateserial")
        _openssl("x509", "-req", "-in", asked, *by, "-out", file, "-days", 9)
        return file, key


def options(pair: tuple[Path, Path] | None) -> str:
    """What an upstream's address says to show a certificate."""
    words = {"tls": "1", "ca": str(SERVER)}
    if pair is not None:
        words |= {"certificate": str(pair[0]), "key": str(pair[1])}
    return "&".join(f"{name}={quote(value)}" for name, value in words.items())
