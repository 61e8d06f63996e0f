"""An AWS account, empty, that this process's environment leads to."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diptych.check import Finding, check_file
from diptych.check.account import Image
from diptych.eks.account import gather
from diptych.eks.aws import Session
from fakes.aws import FakeAws

REGION = "us-east-2"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    """An account of this test's own."""
    with FakeAws(REGION) as fake:
        _lead_to(fake, monkeypatch)
        yield fake


@pytest.fixture(scope="module")
def lasting() -> Iterator[FakeAws]:
    with FakeAws(REGION) as fake:
        yield fake


@pytest.fixture
def shared(lasting: FakeAws, monkeypatch: pytest.MonkeyPatch) -> FakeAws:
    """An account that a module's tests share: what it allows and offers may be changed, and nothing made in it."""
    lasting.faults.__init__("arn:aws:iam::123456789012:user/tester")  # type: ignore[misc]
    lasting.quotas.__init__(lasting.faults)  # type: ignore[misc]
    lasting.prices.__init__(REGION, lasting.faults)  # type: ignore[misc]
    lasting.ec2.offerings.clear()
    lasting.ec2.reservations.clear()
    lasting.calls.clear()
    lasting.clock_skew_s = 0
    _lead_to(lasting, monkeypatch)
    return lasting


@pytest.fixture(scope="module")
def lasting_session(lasting: FakeAws) -> Session:
    with pytest.MonkeyPatch.context() as patch:
        _lead_to(lasting, patch)
        session = Session(REGION)
        for service in ("sts", "ec2", "eks", "iam", "service-quotas"):
            session.client(service)
    return session


@pytest.fixture
def session(request: pytest.FixtureRequest) -> Session:
    """A session that has asked nothing yet; in a shared account its clients, which are slow to make, are shared."""
    if "shared" not in request.fixturenames:
        return Session(REGION)
    session: Session = request.getfixturevalue("lasting_session")
    vars(session).pop("_caller", None)
    return session


@pytest.fixture
def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: Session
) -> Callable[..., dict[str, list[Finding]]]:
    """The findings about the account that a document `llm` meets, by code; `expected` as for `gather`.

    No registry is asked: tests/check/test_registry.py does that.
    """
    monkeypatch.setattr("diptych.eks.registries.find_image", lambda name: Image(name, True))

    def check(text: str = "", **options: str) -> dict[str, list[Finding]]:
        file = tmp_path / "diptych.yaml"
        file.write_text(f"on: eks\nname: llm\nmodel: Qwen/Qwen3-8B\n{text}")
        report = check_file(file, environ={}, account=lambda found: gather(found, session, **options))
        by_code: dict[str, list[Finding]] = defaultdict(list)
        for each in report.findings:
            if each.code.startswith("N"):
                by_code[each.code].append(each)
        return by_code

    return check


def _lead_to(fake: FakeAws, patch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    for name, value in fake.environ().items():
        patch.setenv(name, value)
