"""Apply a method's server rule, and name the method if the rule fails."""

from typing import Any

from torch import Tensor

from raybcgd.algorithms.api import Algorithm, Round
from raybcgd.algorithms.settings import ALGORITHMS
from raybcgd.errors import RunError, located_line


def apply_server_rule(algorithm: Algorithm, server: Any, total: Any, rnd: Round) -> Any:
    """Return the server's next state. Raise a RunError if the rule of a custom method fails or changes a shape."""
    name = ALGORITHMS.name_of(type(algorithm))
    if name in ALGORITHMS:
        return algorithm.server_rule(server, total, rnd)
    where = f'the server rule of algorithm.name = "{name}" failed in round {rnd.index + 1}'
    try:
        result = algorithm.server_rule(server, total, rnd)
    # Custom code may raise anything.
    except Exception as error:
        raise RunError(f"{where}: {located_line(error)}; fix it") from error
    if not isinstance(result, type(server)):
        raise RunError(f"{where}: it returned {type(result).__name__}; return a {type(server).__name__}")
    for field, before, after in zip(server._fields, server, result, strict=True):
        if not isinstance(after, Tensor) or after.shape != before.shape:
            found = f"a tensor of shape {tuple(after.shape)}" if isinstance(after, Tensor) else type(after).__name__
            raise RunError(f"{where}: it returned {field} as {found}; return a tensor of shape {tuple(before.shape)}")
    return result
