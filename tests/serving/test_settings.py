"""The orchestrator's settings as the engines' own allow them."""

import pytest

from diptych.serving.settings import Settings, settings_of, within_lease


@pytest.mark.parametrize(("deadline_s", "lease_s", "kept_s"), [(30, 120, 30), (30, 30, 15), (15, 10, 5)])
def test_no_kv_transfer_is_waited_for_until_its_lease_may_be_over(
    deadline_s: float, lease_s: float, kept_s: float
) -> None:
    asked = Settings(prefill=512, kv_transfer_deadline_s=deadline_s)
    kept = within_lease(asked, lease_s)
    assert (kept.kv_transfer_deadline_s, kept.prefill) == (kept_s, 512)


def test_the_first_token_is_prefills_or_decodes() -> None:
    assert (settings_of({}).first_token, settings_of({"first_token": "decode"}).first_token) == (
        "prefill",
        "decode",
    )
    with pytest.raises(ValueError, match=r"orchestrator\.first_token is 'both': give prefill or decode"):
        settings_of({"first_token": "both"})
