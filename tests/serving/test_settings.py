"""The orchestrator's settings as the engines' own allow them."""

import pytest

from diptych.serving.settings import Settings, within_lease


@pytest.mark.parametrize(("deadline_s", "lease_s", "kept_s"), [(30, 120, 30), (30, 30, 15), (15, 10, 5)])
def test_no_kv_transfer_is_waited_for_until_its_lease_may_be_over(
    deadline_s: float, lease_s: float, kept_s: float
) -> None:
    asked = Settings(prefill=512, kv_transfer_deadline_s=deadline_s)
    kept = within_lease(asked, lease_s)
    assert (kept.kv_transfer_deadline_s, kept.prefill) == (kept_s, 512)
