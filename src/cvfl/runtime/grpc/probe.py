"""Trying out a server without taking part: whether it is there, who it is, and which protocol it speaks.

Nothing of this begins a session, or disturbs one: the one frame that is sent is of a protocol that there is not, and a
server answers it with a refusal that says which one it speaks itself.
"""

from __future__ import annotations

import re
import socket
import ssl
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from cvfl.errors import RemoteProtocolError, plain
from cvfl.runtime.address import host_and_port
from cvfl.runtime.grpc.channel import METHOD, SERVICE, Identity, grpc, options
from cvfl.wire.control import Hello, Offer, Refusal, encode_control
from cvfl.wire.read import read_frame

SECONDS = 10.0
_NO_PROTOCOL = 0
_OFFER = Offer(width=1, compressor="identity", label=False)


def check_listens(address: str) -> None:
    """Whether this machine could listen there now."""
    host, port = host_and_port(address)
    try:
        ((family, kind, protocol, _, where), *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(where)
            tried.listen(1)
    except OSError as error:
        remedy = "is a server running there? else choose another port" if port else "choose another address"
        raise RemoteProtocolError(f"{address}: cannot be listened on: {error.strerror}; {remedy}") from None


def check_reaches(address: str, seconds: float = SECONDS) -> None:
    """Whether anybody answers there."""
    try:
        socket.create_connection(host_and_port(address), seconds).close()
    except socket.gaierror:
        raise RemoteProtocolError(f"{address}: no machine has that name; look at network.address") from None
    except OSError as error:
        why = error.strerror or "no answer"
        remedy = "start the server, or ask whether a firewall is between"
        raise RemoteProtocolError(f"{address}: {why.lower()}; {remedy}") from None


def server_certificate(address: str, folder: Path, name: str, seconds: float = SECONDS) -> datetime:
    """Until when the certificate of the server there is valid, once it has shown that it is the server."""
    host, port = host_and_port(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(folder / "ca.crt")
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    try:
        with (
            socket.create_connection((host, port), seconds) as connection,
            context.wrap_socket(connection, server_hostname=host) as secured,
        ):
            told = secured.getpeercert()
    except ssl.SSLCertVerificationError as error:
        raise RemoteProtocolError(f"{address}: {_doubt(error, host)}") from None
    except (ssl.SSLError, OSError) as error:
        why = plain(getattr(error, "reason", None) or error.strerror or str(error))
        raise RemoteProtocolError(f"{address}: no TLS handshake ({why}); is it a cvfl server, with TLS?") from None
    assert told is not None  # since it was verified
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(told["notAfter"])), UTC)


def _doubt(error: ssl.SSLCertVerificationError, host: str) -> str:
    said = plain(error.verify_message)
    if "mismatch" in said or "not valid for" in said:
        return f"its certificate is not for {host}; connect by a name that is in it, or have the server ask for one"
    if "expired" in said or "not yet valid" in said:
        return f"{said}; the server renews it, unless this machine's clock is wrong"
    return f"its certificate is not of the authority of your ca.crt ({said}); compare ca.crt with the server's"


def server_protocol(address: str, identity: Identity | None, name: str, seconds: float = SECONDS) -> int:
    """The version of the handshake that the server there speaks; refused is who has no part in its federation."""
    hello = Hello(name=name, terms={}, offer=_OFFER, protocol=_NO_PROTOCOL)
    chosen = options()
    if identity is None:
        channel = grpc.insecure_channel(address, chosen)
    else:
        channel = grpc.secure_channel(address, identity.for_party(), chosen)
    with closing(channel):
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter([encode_control(hello, 0)]), timeout=seconds)
        try:
            answer = read_frame(next(call))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.ALREADY_EXISTS:
                raise RemoteProtocolError(f"{name} takes part there now; ask again when it does not") from None
            said = plain(f"{error.code().name.lower().replace('_', ' ')}: {error.details()}".splitlines()[0])
            raise RemoteProtocolError(f"{address}: {said}; ask whoever runs the server") from None
        except StopIteration:
            raise RemoteProtocolError(f"{address}: ended without a word; look at the server's log") from None
    found = re.search(r"the server version (\d+)$", answer.reason) if isinstance(answer, Refusal) else None
    if found is None:
        said = plain(answer.reason) if isinstance(answer, Refusal) else type(answer).__name__
        raise RemoteProtocolError(f"{address}: {said}; it is not a server of this kind, or of another version")
    return int(found[1])
