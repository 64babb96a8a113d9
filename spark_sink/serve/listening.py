"""Where the Flight SQL server may listen, and with which certificate."""

from __future__ import annotations

import socket
import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc

from recon_node.program import bind_advice
from spark_sink.errors import SinkError


def check_access(address: str, token: str | None, *, anonymous: bool) -> None:
    """Raise an error if other machines could read everything without a token."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        is_loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if token is None and not is_loopback and not anonymous:
        raise SinkError(
            f"everyone who can reach {address} could read all tables: set a token "
            "(--auth-token-file), listen on 127.0.0.1, or allow it (--anonymous)"
        )


def check_address(address: str) -> None:
    """Raise `SinkError` if the system does not let us listen there: gRPC would not say why."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise SinkError(
            f"cannot listen on {address}: {error.strerror}. "
            f"{bind_advice(error, int(port), '--listen')}"
        ) from error


def credentials(certificate: Path, key: Path) -> Any:
    """Return what gRPC needs for TLS; raise `SinkError` if the files are of no use."""
    try:
        pair = key.read_bytes(), certificate.read_bytes()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        raise SinkError(
            f"cannot use {certificate} and {key} for TLS: both must be PEM files, and the key must "
            "be the certificate's, without a password"
        ) from error
    except OSError as error:
        raise SinkError(f"cannot read {error.filename}: {error.strerror}") from error
    return grpc.ssl_server_credentials([pair])


def _no_password() -> str:
    """Return an empty password: without one, OpenSSL would ask for it on the terminal."""
    return ""
