import pytest

from diptych.spec.convert.quantities import quantity


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        ("2", 2),
        (2, 2),
        ("1500m", 1.5),
        ("0.5", 0.5),
        (".5", 0.5),
        ("100Gi", 100 * 2**30),
        ("60G", 60 * 10**9),
        ("129e6", 129_000_000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("4Ki", 4096),
        ("2k", 2000),
    ],
)
def test_an_amount_is_read_as_kubernetes_does(written: object, amount: float) -> None:
    assert quantity(written) == amount


@pytest.mark.parametrize("written", ["", "lots", "1GiB", "-1", "1 Gi Gi", True, None, [1], "1K", "1e", "٣"])
def test_what_is_no_amount_is_none(written: object) -> None:
    assert quantity(written) is None
