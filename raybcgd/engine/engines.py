"""Look up engines by name."""

from raybcgd.engine.local import LocalEngine
from raybcgd.engine.session import Engine


def engine_named(name: str) -> Engine:
    """Return the engine that `engine` names in a config."""
    if name == "local":
        return LocalEngine()
    from raybcgd.engine.ray.coordinator import RayEngine  # importing Ray takes a second

    return RayEngine()
