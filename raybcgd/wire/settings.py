"""`[wire]`: the built-in upload codecs."""

from raybcgd.registry import Registry
from raybcgd.section import Section

CODECS = Registry(
    "wire.codec",
    {
        "raw": "raybcgd.wire.codecs:Raw",
        "bf16": "raybcgd.wire.codecs:BFloat16",
        "qsgd": "raybcgd.wire.qsgd:QSGD",
        "topk": "raybcgd.wire.topk:TopK",
    },
    base="raybcgd.wire.codecs:Codec",
)
DEFAULT_CODEC = "raw"


class CodecConfig(Section):
    """`[wire]`: how uploads are encoded. `codec` chooses the class."""
