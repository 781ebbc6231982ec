"""The versions that the cluster files pin."""

RAY_VERSION = "2.60.0"
"""The version in constraints.txt. Nodes and images use the same."""
PYTHON_TAG = "py311"
"""The Python version of Ray's images."""
KUBERAY_VERSION = "1.7.0"
"""The first version with `priority` for worker groups."""


def ray_image(gpu: bool) -> str:
    """Return the name of Ray's image."""
    return f"rayproject/ray:{RAY_VERSION}-{PYTHON_TAG}-{'gpu' if gpu else 'cpu'}"
