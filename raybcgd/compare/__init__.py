"""Comparisons of several methods on the same data, model and seed."""

from typing import TYPE_CHECKING

from raybcgd.lazy import lazy

if TYPE_CHECKING:
    from raybcgd.compare.comparison import Comparison as Comparison
    from raybcgd.compare.comparison import compare as compare
else:
    __getattr__, __dir__ = lazy(__name__, {"raybcgd.compare.comparison": ["Comparison", "compare"]})
