"""Addresses of Ray clusters that are refused before Ray starts."""

import pytest

from raybcgd.engine.ray.cluster import cluster
from raybcgd.engine.settings import HostsConfig
from raybcgd.errors import ConfigError


@pytest.mark.parametrize("address", ["auto", "local", "", "10.0.0.5:6379", "head:6379", "ray://head:10001"])
def test_an_address_with_a_port_is_accepted(address: str) -> None:
    assert HostsConfig(address=address).address == address


@pytest.mark.parametrize("address", ["head", "ray://head", "head:", ":6379", "head:client"])
def test_the_environment_variable_needs_a_port_too(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with (
        pytest.raises(ConfigError, match=r"^RAY_ADDRESS = '.*': must be HOST:PORT"),
        cluster(None),
    ):
        pass
