"""Documents to check, with facts that hold still: a day, no network, a commit of the model, the engines of a test."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from diptych.check import Facts, Finding, Installed, Machine, ModelFacts, check_document
from diptych.check.find_config import find_model
from diptych.spec import load_with_provenance

TODAY = date(2026, 11, 29)
HERE = Installed(ray="2.60.0", vllm="0.29.0", nixl="1.3.2")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MACHINE = Machine(memory=24 * 2**30)

Check = Callable[..., list[Finding]]
Codes = Callable[..., set[str]]


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model lies in the hub's cache, whatever this machine has."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Check a document's text: `check(text, model_config={...}, environ={...}, machine=..., today=...)`.

    Most texts here name a model without its commit, which P230 would say of each: it is told with `pinning` only.
    """

    def check(
        text: str,
        overrides: tuple[str, ...] = (),
        model_config: dict[str, Any] | None = None,
        pinning: bool = False,
        **facts: Any,
    ) -> list[Finding]:
        file = tmp_path / "diptych.yaml"
        file.write_text(text)
        loaded = load_with_provenance(file, overrides, {})
        model = replace(find_model(loaded.document, offline=True, environ={}), commit=COMMIT)
        if model_config is not None:
            model = ModelFacts(model_config, "in the test", commit=COMMIT)
        local = loaded.document.on == "local"
        known = Facts(TODAY, model, installed=HERE if local else None, machine=MACHINE if local else None)
        found = check_document(loaded, replace(known, **facts))
        return [each for each in found if pinning or each.code != "P230"]

    return check


@pytest.fixture
def codes(check: Check) -> Codes:
    """As `check`; the codes only."""

    def codes(text: str, *overrides: str, **facts: Any) -> set[str]:
        return {finding.code for finding in check(text, overrides, **facts)}

    return codes
