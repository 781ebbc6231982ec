"""The Ray engine: the coordinator and the client hosts as actors."""

from raybcgd.lazy import garbage_kept

with garbage_kept():  # every actor imports this package first, and then torch
    import raybcgd.client.host as _host  # noqa: F401
