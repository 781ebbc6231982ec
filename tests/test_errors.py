"""Which errors are raised by the user's own code."""

import pytest

from raybcgd.errors import own_line, raised_by_user


@pytest.mark.parametrize(
    ("folder", "own"),
    [
        ("/home/me/project", True),
        ("/home/me/.local/lib/python3.11/site-packages/torch", False),
        ("/usr/lib/python3/dist-packages/torch", False),
    ],
)
def test_installed_packages_are_not_the_users_code(folder: str, own: bool) -> None:
    names: dict[str, object] = {}
    exec(compile("def fail(): raise ValueError('no')", f"{folder}/layers.py", "exec"), names)
    with pytest.raises(ValueError, match="no") as raised:
        names["fail"]()  # type: ignore[operator]
    error = raised.value.with_traceback(raised.tb.tb_next)  # without the frame of this test
    assert raised_by_user(error) is own
    assert own_line(error) == ("ValueError: no (layers.py:1)" if own else "ValueError: no")
