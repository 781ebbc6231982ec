"""The base class of every table in a config."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the TOML file: immutable, and unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )
