"""What both ends of a gRPC connection agree on: the method, credentials, limits and keepalive."""

from __future__ import annotations

import os
from pathlib import Path

from cvfl.errors import ConfigError
from cvfl.privacy import identity as privacy
from cvfl.privacy.identity import SERVER_NAME
from cvfl.runtime.address import is_loopback

# gRPC has no switch for the version of TLS, but one for the cipher suites of TLS 1.2. This suite does not fit the
# elliptic keys of `cvfl certs`, which leaves TLS 1.3. It is read when gRPC is loaded: others take grpc from here.
os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", "ECDHE-RSA-AES256-GCM-SHA384")
import grpc

SERVICE, METHOD = "cvfl.Federation", "Join"
MAX_FRAME = 256 << 20
"""Largest frame that is taken, in bytes."""


class Identity(privacy.Identity):
    """A role's certificate and key, and the authority that all trust; without them nothing is encrypted."""

    @classmethod
    def load(cls, folder: Path, name: str) -> Identity:
        """The files that `cvfl certs` made for a role."""
        return cls.read(*(folder / file for file in ("ca.crt", f"{name}.crt", f"{name}.key")))

    def for_server(self) -> grpc.ServerCredentials:
        """The server's side of mutual TLS: a peer without a certificate of the authority is refused."""
        return grpc.ssl_server_credentials([(self.key, self.certificate)], self.ca, require_client_auth=True)

    def for_party(self) -> grpc.ChannelCredentials:
        """A party's side."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)


HANDSHAKE, IDLE = 5.0, 60.0
"""Seconds that a peer has for its handshake, and that a connection without a stream is kept."""


WINDOW = 4 << 20
"""Bytes that may be on their way on a stream before the other end has taken them."""


def options(max_frame: int = MAX_FRAME) -> list[tuple[str, int]]:
    """Limits and keepalive of a connection: a silent peer is noticed within half a minute.

    The window is large from the start, instead of found out by pings that cost as much as a small message.
    """
    return [
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW),
        ("grpc.max_receive_message_length", max_frame),
        ("grpc.max_send_message_length", max_frame),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.so_reuseport", 0),
    ]


def server_options(max_frame: int) -> list[tuple[str, int]]:
    """Those of the server: a peer that takes a connection and does nothing with it does not keep it."""
    return [
        *options(max_frame),
        ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE)),
        ("grpc.max_connection_idle_ms", int(1000 * IDLE)),
    ]


def check_insecure(address: str) -> None:
    """Plain text is for trying out on one machine only."""
    host = address.rpartition(":")[0].strip("[]")
    if not is_loopback(host):
        raise ConfigError(f"--insecure is for this machine only, not for {address}; make certificates with: cvfl certs")


def peer_name(context: grpc.ServicerContext) -> str | None:
    """The name in the peer's certificate; None on a connection without TLS."""
    names = context.auth_context().get("x509_common_name", [])
    return names[0].decode() if names else None


__all__ = [
    "MAX_FRAME",
    "METHOD",
    "SERVER_NAME",
    "SERVICE",
    "Identity",
    "check_insecure",
    "grpc",
    "options",
    "peer_name",
    "server_options",
]
