"""How far a model is, from the lines that staging and vLLM write."""

import pytest

from diptych.kube.loading import engine, staging

SHARDS = "Loading safetensors checkpoint shards:  {share}% Completed | {done}/4 [00:{s:02d}<00:{left:02d},  5.10s/it]"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        pytest.param(
            ["stage: 9.66 GB are here, 402 MB/s"],
            "fetches the model: 9.7 of 19.3 GB at 402 MB/s, about 24 s left",
            id="rate and estimate",
        ),
        pytest.param(
            ["stage: 9.66 GB are here, 20 MB/s"],
            "20 MB/s, which is slow",
            id="slow",
            marks=pytest.mark.report("G5"),
        ),
        pytest.param(["stage: 9.66 GB are here, 0 MB/s"], "at 0 MB/s, which is slow", id="stuck"),
        pytest.param(
            ["stage: attempt 2 of 6 failed, again in 10 s: 429 Client Error"],
            "attempt 2 of 6 failed",
            id="again",
            marks=pytest.mark.report("G1"),
        ),
        pytest.param(["stage: m is in /models/m already"], "(warm)", id="warm"),
        pytest.param(
            ["stage: m is in /models/m: 19.32 GB in 48 s, 402 MB/s"],
            "(cold): 19.32 GB in 48 s, 402 MB/s",
            id="cold",
        ),
        pytest.param(["nothing of ours"], "", id="unknown"),
    ],
)
def test_staging_is_told_with_its_rate(lines: list[str], told: str) -> None:
    assert told in staging(lines, 19_320_000_000)
    assert bool(staging(lines, 19_320_000_000)) == bool(told)


def test_a_size_that_is_not_known_gives_a_rate_without_an_estimate() -> None:
    assert staging(["stage: 9.66 GB are here, 402 MB/s"], None) == "fetches the model: 9.7 GB at 402 MB/s"


@pytest.mark.report("G4")
def test_reading_from_a_network_disk_is_told_apart_from_being_stuck() -> None:
    lines = [
        "INFO 11-30 12:00:01 [weight_utils.py:853] Filesystem type for checkpoints: NFS. Checkpoint size: "
        "894.00 GiB. Available RAM: 9.10 GiB.",
        "Loading safetensors checkpoint shards:  10% Completed | 5/50 [04:18<38:42, 51.60s/it]",
    ]

    told = engine(lines, None)
    assert (
        "5 of 50 files" in told
        and "372 MB/s" in told
        and "38 min 42 s left" in told
        and "network disk (NFS)" in told
    )


def test_stages_after_the_weights_are_told_though_the_progress_bars_stand_in_another_stream() -> None:
    out = [
        "INFO 11-30 12:00:00 [x.py:1] Starting to load model m...",
        "INFO 11-30 12:00:30 [x.py:1] GPU KV cache size: 83,024 tokens, Maximum",
    ]
    err = [SHARDS.format(share=100, done=4, s=20, left=0)]

    assert engine([*out, *err], None) == "has its KV cache, for 83,024 tokens"
    assert engine([out[0], *err], None).startswith("loads the weights: 4 of 4 files, 100 %")


def test_the_latest_progress_counts() -> None:
    lines = [SHARDS.format(share=25, done=1, s=5, left=15), SHARDS.format(share=75, done=3, s=15, left=5)]

    assert "3 of 4 files, 75 %" in engine(lines, None)


def test_carriage_returns_and_colours_do_not_hide_a_line() -> None:
    assert "2 of 4" in engine(
        ["\r\x1b[36m" + SHARDS.format(share=50, done=2, s=10, left=10) + "\x1b[0m"], None
    )


def test_an_engine_that_has_written_nothing_known_is_not_guessed_at() -> None:
    assert engine(["something"], None) == ""
