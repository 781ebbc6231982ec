"""The declarations of a method, and the checks when its class is created."""

import textwrap
from typing import Annotated, Any, ClassVar, NamedTuple

import pytest
from torch import Tensor

from raybcgd.algorithms import ALGORITHMS, FedAvg, api
from raybcgd.algorithms.api import (
    Algorithm,
    ControlVariate,
    Count,
    Displacement,
    Momentum,
    OwnBlock,
    PerPhase,
    Scalar,
    SharedBlock,
    Summed,
    Whole,
)
from raybcgd.algorithms.contract import displacement, marked, summary, title
from raybcgd.errors import ConfigError

DELTA = Annotated[Whole, Displacement]


def rule(*_: Any) -> None:
    """A placeholder for any rule."""


def mine(leave_out: str = "", **changes: Any) -> type[Algorithm]:
    """Create a minimal method with some attributes replaced; a dictionary becomes a NamedTuple of its annotations."""
    attributes: dict[str, Any] = {
        "name": "mine",
        "Server": {"x": Whole},
        "Down": {"x": Whole},
        "Upload": {"delta": DELTA},
        "client_rule": rule,
        "server_rule": rule,
        **changes,
    }
    attributes.pop(leave_out, None)
    for key, value in attributes.items():
        if isinstance(value, dict):
            attributes[key] = NamedTuple(key, list(value.items()))  # type: ignore[misc]
    annotations = {key: ClassVar[Any] for key in attributes if key != "client_rule"}
    return type("Mine", (Algorithm,), {**attributes, "__annotations__": annotations, "__module__": __name__})


KEPT = "Whole, Scalar, PerPhase, PhaseCounts or Count"
SENT = "Whole, OwnBlock, SharedBlock or Scalar"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"leave_out": "name"}, 'Mine has no name; write name: ClassVar[str] = "mine"'),
    ({"leave_out": "Server"}, "Mine has no Server; write class Server(NamedTuple): x: Whole"),
    ({"leave_out": "Down"}, "Mine has no Down; write class Down(NamedTuple): x: Whole"),
    (
        {"leave_out": "Upload"},
        "Mine has no Upload; write class Upload(NamedTuple): delta: Annotated[Whole, Displacement]",
    ),
    ({"leave_out": "client_rule"}, "Mine has no client_rule; write def client_rule(self, work, down, mine)"),
    ({"leave_out": "server_rule"}, "Mine has no server_rule; write def server_rule(self, server, total, rnd)"),
    ({"Terms": {"delta": DELTA}}, "Mine has no terms; write def terms(self, sent, down, task)"),
    ({"Upload": Tensor}, "Mine.Upload is not a NamedTuple; write class Upload(NamedTuple)"),
    ({"Client": None}, "Mine.Client is not a NamedTuple; write class Client(NamedTuple)"),
    ({"Sent": {"delta": DELTA}}, "Mine.Sent has no role; end its name in Upload or Terms, or define it outside Mine"),
    ({"Upload": {"delta": Tensor}}, f"Mine.Upload.delta must be annotated as {SENT}"),
    ({"SentUpload": {"delta": DELTA, "dc": float}}, f"Mine.SentUpload.dc must be annotated as {SENT}"),
    ({"Client": {"c": Tensor | None}}, f"Mine.Client.c must be annotated as {KEPT}"),
    ({"Down": {"x": Tensor}}, "Mine.Down.x must be annotated as Whole, SharedBlock or Scalar"),
    (
        {"Upload": {"delta": "Missing"}},
        "Mine.Upload has an unknown annotation: name 'Missing' is not defined; import that name at module level",
    ),
    ({"Client": {"c": OwnBlock}}, f"Mine.Client.c is OwnBlock; a client state can only have {KEPT}"),
    ({"Server": {"x": Whole, "c": SharedBlock}}, f"Mine.Server.c is SharedBlock; a server state can only have {KEPT}"),
    ({"Upload": {"delta": DELTA, "n": Count}}, f"Mine.Upload.n is Count; an upload can only have {SENT}"),
    (
        {"Terms": {"delta": DELTA, "n": PerPhase}, "terms": rule},
        f"Mine.Terms.n is PerPhase; terms can only have {SENT}",
    ),
    ({"Down": {"x": OwnBlock}}, "Mine.Down.x is OwnBlock; a broadcast can only have Whole, SharedBlock or Scalar"),
    ({"Server": {"v": Whole}}, "Mine.Server has no x; write x: Whole for the global model"),
    ({"Server": {"x": PerPhase}}, "Mine.Server.x is PerPhase; write x: Whole for the global model"),
    ({"Down": {"z": Whole}}, "Mine.Down has no x; write x: Whole for the start of local training"),
    (
        {"Down": {"x": SharedBlock}},
        "Mine.Down.x is SharedBlock; write x: Whole for the start of local training",
    ),
    (
        {"Client": {"c": Annotated[Whole, ControlVariate]}},
        "Mine.Client.c is Whole and marked ControlVariate; only a Whole field of Server can have that mark",
    ),
    (
        {"Server": {"x": Whole, "v": Annotated[PerPhase, Momentum]}},
        "Mine.Server.v is PerPhase and marked Momentum; only a Whole field of Server can have that mark",
    ),
    (
        {"Upload": {"loss": Annotated[Scalar, Displacement]}},
        "Mine.Upload.loss is Scalar and marked Displacement; only a Whole or OwnBlock field of Upload or Terms "
        "can have that mark",
    ),
    (
        {"Down": {"x": Annotated[Whole, Summed]}},
        f"Mine.Down.x is Whole and marked Summed; only a {SENT} field of Upload or Terms can have that mark",
    ),
    (
        {"Upload": {"delta": Annotated[Whole, Displacement, Summed]}},
        "Mine.Upload.delta is the Displacement, which is averaged; declare its sum as a second field",
    ),
    ({"Upload": {"y": OwnBlock}}, "Mine.Upload has no Displacement; write y: Annotated[OwnBlock, Displacement]"),
    (
        {"Upload": {"loss": Scalar}},
        "Mine.Upload has no Displacement; write delta: Annotated[Whole, Displacement]",
    ),
    (
        {"DerivedTerms": {"delta": Whole}, "terms": rule},
        "Mine.DerivedTerms has no Displacement; write delta: Annotated[Whole, Displacement]",
    ),
    ({"Upload": {"a": DELTA, "b": DELTA}}, "Mine.Upload marks a and b as Displacement; mark one field"),
    (
        {"Upload": {"delta": Annotated[OwnBlock, Displacement]}, "Terms": {"delta": DELTA}, "terms": rule},
        "Mine.Terms.delta is Whole, but no field of Mine.Upload is; declare it OwnBlock",
    ),
    (
        {"Server": {"x": Whole, "v": Annotated[Whole, Momentum], "w": Annotated[Whole, Momentum]}},
        "Mine.Server marks v and w as Momentum; mark one field",
    ),
    (
        {"Server": {"x": Whole, "b": Annotated[Whole, ControlVariate], "c": Annotated[Whole, ControlVariate]}},
        "Mine.Server marks b and c as ControlVariate; mark one field",
    ),
    (
        {"OtherServer": {"x": Whole}},
        "Mine.OtherServer has no role; end its name in Upload or Terms, or define it outside Mine",
    ),
    (
        {"client_rule": lambda self, work, down: None},
        "Mine.client_rule does not take (work, down, mine); write def client_rule(self, work, down, mine)",
    ),
    (
        {"server_rule": lambda self, server, total: None},
        "Mine.server_rule does not take (server, total, rnd); write def server_rule(self, server, total, rnd)",
    ),
    (
        {"settle": lambda self, mine: None},
        "Mine.settle does not take (mine, terms); write def settle(self, mine, terms)",
    ),
    (
        {"terms": lambda self, sent: None},
        "Mine.terms does not take (sent, down, task); write def terms(self, sent, down, task)",
    ),
    (
        {"server_rule": lambda self, server, total, rnd, more: None},
        "Mine.server_rule does not take (server, total, rnd); write def server_rule(self, server, total, rnd)",
    ),
    (
        {"broadcast": lambda self, server, *, rnd: None},
        "Mine.broadcast does not take (server, rnd); write def broadcast(self, server, rnd)",
    ),
    (
        {"Down": {"x": Whole, "z": Whole}},
        "Mine.Down.z is not a field of Mine.Server; add it there, or override broadcast",
    ),
    (
        {"Server": {"x": Whole, "s": Count}, "Down": {"x": Whole, "s": Scalar}},
        "Mine.Down.s is Scalar but Mine.Server.s is Count; declare both the same, or override broadcast",
    ),
]


@pytest.mark.parametrize(("changes", "line"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_class_is_refused_with_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(TypeError) as error:
        mine(**changes)
    assert str(error.value) == line


def test_a_config_that_names_a_wrong_class_is_refused_with_one_line(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong_method.py").write_text(
        "from raybcgd.algorithms import Algorithm\nclass Mine(Algorithm):\n    name = 'mine'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as error:
        ALGORITHMS.resolve("wrong_method:Mine")
    assert "Mine has no Server; write class Server(NamedTuple): x: Whole" in str(error.value)
    assert "\n" not in str(error.value)


def test_correct_classes_are_accepted() -> None:
    mine()
    mine(Upload={"y": Whole}, Terms={"delta": DELTA}, terms=rule)
    mine(Down={"x": Whole, "z": Whole}, broadcast=rule)
    mine(Server={"x": Whole, "c": Whole}, Down={"x": Whole, "c": SharedBlock})
    mine(client_rule=lambda self, work, *rest: None, settle=lambda self, m, t, extra=0: None)
    mine(terms=staticmethod(lambda sent, down, task: None))

    class Child(FedAvg):
        """A subclass inherits every declaration but the name."""

    assert Child.name == "Child"


def test_the_example_in_the_documentation_is_a_method() -> None:
    _, example = (api.__doc__ or "").split("on block uploads:\n\n")
    text = example.split("\n\nA round")[0]
    space = {**vars(api), "Annotated": Annotated}
    exec(textwrap.dedent(text), space)
    method = space["Mine"]
    assert method().blockwise
    assert title(method) == "Mine"
    assert marked(method.Server, Momentum) == ("v",)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_built_in_methods_are_described_by_their_declarations(name: str) -> None:
    kind = ALGORITHMS.resolve(name)
    assert kind.name == name
    assert displacement(kind().terms_type) == "delta"
    words = summary(kind)
    assert words.idea.endswith(".")
    assert words.paper or name == "sgd"
    assert words.title not in ("", kind.name)


def test_a_docstring_in_another_form_is_returned_as_the_idea() -> None:
    class Plain(FedAvg):
        """FedAvg again."""

        name: ClassVar[str] = "plain"

    assert summary(Plain) == ("plain", "", "FedAvg again.")
