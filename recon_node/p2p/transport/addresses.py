"""Multiaddrs: parsing, checking, resolving.

This node speaks TCP only: an address that can be dialled has a host, a TCP port and, at its end, a
peer id. What others say about themselves and about third parties is checked for that, too.
"""

import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import islice
from typing import Any, Final

import idna
import trio
from multiaddr import Multiaddr  # type: ignore[import-untyped]
from multiaddr.codecs.domain import Codec as _NamePart  # type: ignore[import-untyped]
from multiaddr.utils import (  # type: ignore[import-untyped]
    get_multiaddr_options,
    get_network_addrs,
    get_thin_waist_addresses,
    is_wildcard,
)

from recon_node.base.program import bind_advice
from recon_node.p2p.errors import P2PError, PeerError

MAX_RESOLVED: Final = 8
"""Maximum addresses that a name resolves to; further ones are ignored."""
MAX_ADDRESS: Final = 512
"""Maximum characters of an address that can be dialled: a name has up to 253."""
DNSADDR: Final = "dnsaddr"
_DNS_FAMILIES: Final = {
    "dns": socket.AF_UNSPEC,
    "dns4": socket.AF_INET,
    "dns6": socket.AF_INET6,
}
_LOOPBACK: Final = {4: "127.0.0.1", 6: "::1"}
_NAME: Final = r"(?:[\w-]{1,63}\.){0,126}[\w-]{1,63}\.?"
_ASCII_NAME: Final = re.compile(_NAME, re.ASCII)
_SIZED_NAME: Final = rb"(?:[\x01-\x7f]|[\x80-\xff]\x01)" + _NAME.encode()
_LIKELY: Final = re.compile(
    rb"(?:(?:\x04.{4}|\x29.{16}|[\x35-\x37]%b)\x06..|\x38%b)(?:\xa5\x03.+)?"
    % (_SIZED_NAME, _SIZED_NAME),
    re.DOTALL,
)
"""Binary multiaddrs that look as if they can be dialled: of an IP address, or a name in ASCII, and
a TCP port; or a /dnsaddr; perhaps with a peer id."""


def peer_id_in(address: str) -> str:
    """Return the peer id at the end of a multiaddr.

    Raises:
        PeerError: it is not a multiaddr, or it has no peer id.
    """
    parsed = parse_address(address)
    try:
        peer_id = parsed.value_for_protocol("p2p")
    except Exception:
        peer_id = None
    if not peer_id:
        raise PeerError(f"the address {address} has no peer id: it must end with /p2p/<peer id>")
    return str(peer_id)


def parse_address(address: str) -> Multiaddr:
    """Return a multiaddr. Raises PeerError when the text is not one."""
    try:
        return Multiaddr(address)
    except Exception as error:  # multiaddr raises several kinds, and its codecs more
        raise PeerError(
            f"{address!r} is not a multiaddr such as /ip4/127.0.0.1/tcp/4101: {_reason(error)}"
        ) from None


def _reason(error: Exception) -> str:
    """Return the library's message without the address, which it repeats twice."""
    text = str(error).removeprefix("Invalid MultiAddr ")
    return text.partition("': ")[2].rpartition(" (string: ")[0] or text


def check_dialable(address: Multiaddr) -> None:
    """Raise PeerError if an address cannot be dialled.

    It may be of another transport, or its host may be unspecified (0.0.0.0) or not a single one,
    or its port 0.
    """
    try:
        parts = [(protocol.name, value) for protocol, value in address.items()]
    except ValueError:  # the library takes /ip6zone, but cannot read it
        parts = []
    names = [name for name, _ in parts]
    if names in ([DNSADDR], [DNSADDR, "p2p"]):
        return
    if names[1:] not in (["tcp"], ["tcp", "p2p"]) or names[0] not in ("ip4", "ip6", *_DNS_FAMILIES):
        raise PeerError(
            f"{address} cannot be dialled: this node speaks TCP only, at addresses such as "
            "/ip4/192.0.2.7/tcp/4101/p2p/<peer id>"
        )
    if int(parts[1][1]) == 0:
        raise PeerError(f"{address} cannot be dialled: its port is 0")
    ip = ip_meant(parts[0][1])
    if ip is None:
        return
    if ip.is_unspecified or ip.is_multicast or str(ip) == "255.255.255.255":
        raise PeerError(f"{address} cannot be dialled: {ip} is not the address of a host")
    if ip.version == 6 and ip.is_link_local:
        raise PeerError(
            f"{address} cannot be dialled: {ip} is a link-local address, which needs an interface"
        )


def is_dialable(address: Multiaddr | str) -> bool:
    """Return whether an address can be dialled, as far as its text shows."""
    try:
        text = str(address)
    except Exception:  # the bytes of others: of any length, each part may be anything
        return False
    return len(text) <= MAX_ADDRESS and _is_dialable(text)


@lru_cache(1024)  # many peers send the same addresses, again and again
def _is_dialable(address: str) -> bool:
    try:
        check_dialable(parse_address(address))
    except PeerError:
        return False
    return True


def likely(addresses: Iterable[bytes], most: int) -> list[bytes]:
    """Return the first few binary multiaddrs of somebody's that look as if they can be dialled.

    To read and check one takes a hundred times as long as this look at its bytes, and anybody can
    send thousands.
    """
    return list(islice(filter(_LIKELY.fullmatch, addresses), max(0, most)))


def shorten_names() -> None:
    """Take names in ASCII in multiaddrs as they are. Applies to the whole process; idempotent.

    Stock looks up each character of a name in tables of IDNA, each time that an address is written
    or read: half a millisecond for a long one.
    """
    _NamePart.to_bytes, _NamePart.to_string = _name_to_bytes, _name_to_string


_stock_to_bytes: Final = _NamePart.to_bytes
_stock_to_string: Final = _NamePart.to_string


def _name_to_bytes(self: Any, proto: Any, string: str) -> bytes:
    if _ASCII_NAME.fullmatch(string):
        return string.encode()
    return bytes(_stock_to_bytes(self, proto, string))


def _name_to_string(self: Any, proto: Any, buf: bytes) -> str:
    if buf.isascii() and _ASCII_NAME.fullmatch(name := buf.decode()):
        return name
    return str(_stock_to_string(self, proto, buf))


def is_loopback(address: str) -> bool:
    """Return whether an address can only be dialled on the peer's own machine."""
    host = host_of(address)
    return host is not None and is_loopback_ip(host)


def is_loopback_ip(text: str) -> bool:
    """Return whether a text means an IP address of the loopback interface."""
    ip = ip_meant(text)
    return ip is not None and ip.is_loopback


def ip_meant(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address that a host is, or that every resolver takes it for: `localhost` and
    what ends so (RFC 6761), and numbers such as 0, 127.1 and 0x7f.1 (inet_aton). None: a name."""
    text = host.rstrip(".")
    with suppress(UnicodeError):  # as resolvers spell it, with digits of ASCII
        text = text.encode("idna").decode()
    text = text.lower()
    if text == "localhost" or text.endswith(".localhost"):
        return IPv4Address(_LOOPBACK[4])
    with suppress(ValueError):
        ip = ip_address(text)
        return getattr(ip, "ipv4_mapped", None) or ip
    with suppress(OSError):
        return IPv4Address(socket.inet_aton(text))
    return None


def host_of(address: str) -> str | None:
    """Return the IP address or the name at the start of a multiaddr; None if it has neither."""
    parts = address.split("/")
    return parts[2] if len(parts) > 2 else None


async def resolve(
    address: Multiaddr, lookups: trio.CapacityLimiter | None = None
) -> list[Multiaddr]:
    """Return the addresses that an address with a DNS name stands for; others as they are.

    The TXT records of a `/dnsaddr` are addresses, as in libp2p. The caller must limit the time,
    since the DNS has no limit of its own: a lookup that nobody waits for any more keeps its thread
    until the DNS gives up. With `lookups`, it is one of these, and not one that others need.

    Raises:
        PeerError: the name does not resolve.
    """
    first = next(iter(address.protocols()), None)
    if first is None:
        return [address]
    if first.name == DNSADDR:
        return await _resolve_dnsaddr(address)
    if first.name not in _DNS_FAMILIES:
        return [address]
    name = address.value_for_protocol(first.name)
    # Python's own spelling is of IDNA 2003, by which straße.example is another host.
    host = name if name.isascii() else idna.encode(name, uts46=True)
    try:
        look_up = partial(socket.getaddrinfo, host, None, family=_DNS_FAMILIES[first.name])
        infos = await trio.to_thread.run_sync(
            partial(look_up, type=socket.SOCK_STREAM),
            abandon_on_cancel=True,  # type: ignore[call-arg]  # stubs of trio 0.22
            limiter=lookups,
        )
    except OSError as error:
        raise PeerError(f"cannot find the host {name} of {address}: {error.strerror}") from None
    rest = str(address).removeprefix(f"/{first.name}/{name}")
    versions = {socket.AF_INET: "ip4", socket.AF_INET6: "ip6"}
    ips = [f"/{versions[family]}/{at[0]}" for family, *_, at in infos if family in versions]
    return [Multiaddr(ip + rest) for ip in dict.fromkeys(ips)][:MAX_RESOLVED]


async def _resolve_dnsaddr(address: Multiaddr) -> list[Multiaddr]:
    from multiaddr.resolvers import DNSResolver  # type: ignore[import-untyped]

    name = address.value_for_protocol(DNSADDR)
    try:
        resolved = await DNSResolver().resolve(address)
    except Exception as error:  # the library's own, and those of dnspython
        raise PeerError(f"cannot look up the TXT records of _dnsaddr.{name}: {error}") from None
    if resolved is None:
        raise PeerError(f"the DNS did not answer for _dnsaddr.{name}: try again later")
    usable = [candidate for candidate in resolved if is_dialable(candidate)]
    if not usable:
        raise PeerError(
            f"the TXT records of _dnsaddr.{name} have no TCP address for {address}: check the name "
            "and the peer id"
        )
    return usable[:MAX_RESOLVED]


def check_listenable(address: Multiaddr) -> None:
    """Raise P2PError if an address is not one to listen on."""
    names = [protocol.name for protocol in address.protocols()]
    if names not in (["ip4", "tcp"], ["ip6", "tcp"]):
        raise P2PError(
            f"cannot listen on {address}: it must be /ip4/.../tcp/<port> or /ip6/.../tcp/<port>"
        )


def check_port(address: Multiaddr) -> None:
    """Raise P2PError if an address that is listenable is not this machine's, or its port is taken.

    The library would not notice, since it shares ports (SO_REUSEPORT).
    """
    (kind, ip), (_, number) = address.items()
    family, port = socket.AF_INET6 if kind.name == "ip6" else socket.AF_INET, int(number)
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((ip, port))
    except OSError as error:
        raise P2PError(
            f"cannot listen on {address} for peers: {error.strerror}. "
            f"{bind_advice(error, port, '--listen')}"
        ) from error


def reachable(candidates: Iterable[Multiaddr]) -> list[Multiaddr]:
    """Replace wildcards such as 0.0.0.0, which nobody can dial, by the addresses of this machine.

    The result may be empty. A machine without a network only has its loopback address.
    """
    spelled_out: dict[Multiaddr, None] = {}
    for candidate in candidates:
        for spelling in _spelled_out(candidate):
            if is_dialable(spelling):
                spelled_out[spelling] = None
    return list(spelled_out)


def _spelled_out(candidate: Multiaddr) -> list[Multiaddr]:
    options = get_multiaddr_options(candidate)
    if options is None or not is_wildcard(options["host"]):
        return [candidate]
    spelled_out = list(get_thin_waist_addresses(candidate))
    if not spelled_out and not get_network_addrs(options["family"]):
        host = _LOOPBACK[options["family"]]
        spelled_out.append(Multiaddr(f"/ip{options['family']}/{host}/tcp/{options['port']}"))
    return spelled_out
