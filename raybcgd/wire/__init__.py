"""What travels: declared uploads become slices and bytes."""

from raybcgd.wire.codecs import BFloat16, Codec, Raw
from raybcgd.wire.qsgd import QSGD
from raybcgd.wire.topk import TopK

CODECS: dict[str, type[Codec]] = {"raw": Raw, "bf16": BFloat16, "qsgd": QSGD, "topk": TopK}
"""The codecs, by the name that `[wire] codec` gives them."""

__all__ = ["CODECS", "QSGD", "BFloat16", "Codec", "Raw", "TopK"]
