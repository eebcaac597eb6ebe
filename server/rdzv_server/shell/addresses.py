"""Socket addresses as people write them."""


def host_of(address: object) -> str:
    """The host of a socket address; IPv4 in IPv6 clothes (`::ffff:10.0.0.1`) is undressed."""
    host = str(address[0]) if isinstance(address, tuple) and address else ""
    return host.removeprefix("::ffff:")


def shown(address: object) -> str:
    """`10.0.0.1:29500`, `[fe80::1]:29500`."""
    host = host_of(address)
    port = address[1] if isinstance(address, tuple) and len(address) > 1 else 0
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
