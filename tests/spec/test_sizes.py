import pytest

from diptych.spec.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("512MiB", 512 * 1024**2),
        ("2 GiB", 2 * 1024**3),
        ("1.5 GiB", 3 * 1024**3 // 2),
        ("0.1KiB", 102),
        ("4Gi", 4 * 1024**3),
        ("2GB", 2_000_000_000),
        (" 7 kb ", 7000),
        ("1TiB", 1024**4),
        ("123", 123),
        (123, 123),
    ],
)
def test_a_size_is_read_in_bytes(written: str | int, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize("written", ["", "MiB", "-1MiB", "1,5 GiB", "1e9", "two GiB", "1 GiB 2", "٣MiB"])
def test_what_is_no_amount_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="no amount of memory"):
        parse_size(written)


def test_a_lone_letter_is_refused_because_it_could_mean_two_units() -> None:
    with pytest.raises(ValueError, match="G could mean GiB or GB"):
        parse_size("2G")


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(ValueError, match="MiBs is no unit of memory"):
        parse_size("2MiBs")


@pytest.mark.parametrize(
    ("size", "written"),
    [(17, "17 B"), (1024, "1 KiB"), (1536 * 1024**2, "1.5 GiB"), (5000 * 1024**4, "5000 TiB")],
)
def test_a_size_is_written_in_its_largest_unit(size: int, written: str) -> None:
    assert format_size(size) == written
