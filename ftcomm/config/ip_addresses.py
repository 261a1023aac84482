"""Addresses that other machines cannot dial."""

import ipaddress


def is_loopback(host: str) -> bool:
    """True if whoever dials `host` reaches its own machine; one that dials a wildcard does too."""
    address = _ip_address(host)
    if address is None:
        return host.lower() in ("localhost", "localhost.localdomain")
    return address.is_loopback or address.is_unspecified


def is_link_local(host: str) -> bool:
    """True for an IPv6 address that needs an interface's name to be dialled, and has none."""
    address = _ip_address(host)
    return address is not None and address.version == 6 and address.is_link_local


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, IPv4 also where it is written as IPv6; None for a name or with an interface."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return None if address.scope_id else address.ipv4_mapped or address
