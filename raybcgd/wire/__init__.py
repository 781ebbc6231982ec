"""The wire format: declared uploads as slices and bytes."""

from typing import TYPE_CHECKING

from raybcgd.lazy import lazy
from raybcgd.wire.settings import CODECS

if TYPE_CHECKING:
    from raybcgd.wire.codecs import BFloat16 as BFloat16
    from raybcgd.wire.codecs import Codec as Codec
    from raybcgd.wire.codecs import Raw as Raw
    from raybcgd.wire.qsgd import QSGD as QSGD
    from raybcgd.wire.topk import TopK as TopK
else:
    __getattr__, __dir__ = lazy(__name__, {**CODECS.homes(), "raybcgd.wire.codecs": ["BFloat16", "Codec", "Raw"]})
