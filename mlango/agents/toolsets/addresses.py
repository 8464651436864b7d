"""Which addresses are public: what a model names must not reach into the own network."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

__all__ = ["is_public"]

# Global unicast. What lies outside may hold an IPv4 address (mapped, NAT64) or be local.
_UNICAST = IPv6Network("2000::/3")
_REFUSED = [
    ip_network(network)
    for network in (
        "168.63.129.16/32",  # Azure's own services, under a public address
        "192.0.0.0/24",  # protocol assignments; the metadata of one cloud
        "192.88.99.0/24",  # relays of 6to4
        "2001::/23",  # Teredo and other protocols
        "2002::/16",  # 6to4
    )
]


def is_public(text: str) -> bool:
    """Return whether an IP address belongs to the public internet.

    An IPv6 address that stands for an IPv4 one never does.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, IPv6Address) and not _is_plain(address):
        return False
    return not any(address in network for network in _REFUSED)


def _is_plain(address: IPv6Address) -> bool:
    """Return whether an IPv6 address is global unicast, without zone and without ISATAP."""
    is_isatap = (int(address) >> 32) & 0xFDFFFFFF == 0x00005EFE
    return address in _UNICAST and address.scope_id is None and not is_isatap


def is_literal(host: str) -> bool:
    """Return whether a host is written as an IP address."""
    try:
        return isinstance(ip_address(host), IPv4Address | IPv6Address)
    except ValueError:
        return False
