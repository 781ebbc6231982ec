"""The base of every piece of configuration: frozen, and strict about its keys."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the TOML file. It is immutable, and an unknown key in it is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )
