"""Settings refuse what cannot work."""

from typing import Any

import pytest

from rdzv_server.core.settings import Settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"reconnect_grace_s": -1},
        {"scale_up_delay_s": -0.1},
        {"run_keep_s": -5},
        {"hello_timeout_s": 0},
        {"lease_s_min": 5, "lease_s_max": 1},
    ],
)
def test_a_wrong_value_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(reversed(wrong))).split("_")[0]):
        Settings(**wrong)
