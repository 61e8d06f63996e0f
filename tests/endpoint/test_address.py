"""Where an endpoint is and with which key: what may be written, and what is never shown."""

from pathlib import Path

import pytest

from diptych.endpoint import Endpoint
from diptych.errors import EndpointError


def _with_key_file(tmp_path: Path, content: bytes) -> Endpoint:
    path = tmp_path / "api-key"
    path.write_bytes(content)
    return Endpoint("http://127.0.0.1:8000", path, "tiny")


@pytest.mark.parametrize(
    "written",
    [
        "http://host:8000",
        "http://host:8000/",
        "http://host:8000/v1",
        "http://host:8000/v1/",
        "http://host:8000?a=1#b",
    ],
)
def test_a_url_may_be_pasted_with_or_without_v1(written: str) -> None:
    assert Endpoint(written, None, "tiny").url == "http://host:8000"


def test_a_prefix_of_the_url_is_kept() -> None:
    assert Endpoint("https://host/llm/v1", None, "tiny").url == "https://host/llm"


@pytest.mark.parametrize(
    "written", ["", "host:8000", "ftp://host", "http://", "http://host:99999", "http://[::1"]
)
def test_what_is_no_url_is_refused(written: str) -> None:
    with pytest.raises(EndpointError, match="no http:// or https:// URL"):
        Endpoint(written, None, "tiny")


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(EndpointError) as caught:
        Endpoint("http://me:s3cret@host", None, "tiny")
    assert "s3cret" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:8000", True),
        ("http://localhost:8000", True),
        ("http://10.0.0.1:8000", False),
        ("http://localhost.example.com", False),
    ],
)
def test_loopback_is_told_from_elsewhere(url: str, loopback: bool) -> None:
    assert Endpoint(url, None, "tiny").is_loopback is loopback


@pytest.mark.parametrize(
    "content",
    [
        b"dk-123",
        b"  dk-123\r\n",
        b"Authorization: Bearer dk-123\n",
        b"authorization:bearer dk-123\n",
        b"dk-123\ndk-older\n",
        b"dk-123 admin\n",
        b"dk-123\tpriority=-5 admin",
        b"# caf\xc3\xa9\n\n  dk-123 admin\n",
    ],
)
def test_a_key_file_holds_the_key_and_what_it_may_or_the_header_for_curl(
    tmp_path: Path, content: bytes
) -> None:
    assert _with_key_file(tmp_path, content).read_key() == "dk-123"


def test_without_a_key_file_there_is_no_key() -> None:
    assert Endpoint("http://127.0.0.1:8000", None, "tiny").read_key() is None


def test_the_key_is_read_anew_each_time_and_shown_nowhere(tmp_path: Path) -> None:
    endpoint = _with_key_file(tmp_path, b"dk-old")
    assert endpoint.read_key() == "dk-old"
    (tmp_path / "api-key").write_text("dk-new")
    assert endpoint.read_key() == "dk-new"
    assert "dk-" not in repr(endpoint)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"# dk-123\n",
        b"two words",
        b"dk-123 priority=high",
        b"\xff\xfe",
        b"caf\xc3\xa9",
        b"a\x00b",
    ],
)
def test_a_file_without_a_key_is_named_and_its_content_is_not_shown(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(EndpointError) as caught:
        _with_key_file(tmp_path, content).read_key()
    assert caught.value.message == f"The API key file {tmp_path / 'api-key'} holds no API key."


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="api-key cannot be read: No such file"):
        Endpoint("http://127.0.0.1:8000", tmp_path / "api-key", "tiny").read_key()
