"""Ray's own word on what is rendered: asked of the real classes, and what is said where they can't be."""

import importlib.util
import sys
from pathlib import Path

import pytest

from diptych.check import Subject, gather, ray_schema
from diptych.check.ray_schema import ask_ray
from diptych.spec import load_with_provenance

EKS = "on: eks\nmodel: Qwen/Qwen3-8B\n"


def subject(tmp_path: Path, text: str) -> Subject:
    file = tmp_path / "diptych.yaml"
    file.write_text(text)
    loaded = load_with_provenance(file, environ={})
    return Subject(loaded, gather(loaded.document, offline=True, environ={}))


def probe_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(program)
    monkeypatch.setattr(ray_schema, "PROBE", probe)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())


def test_what_ray_refuses_is_an_error_of_its_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe_that(
        monkeypatch,
        tmp_path,
        "import json, sys, yaml\n"
        "config = yaml.safe_load(sys.stdin)\n"
        "assert config['applications'][0]['args']['decode_config']['engine_kwargs']\n"
        "print('a line of log')\n"
        "answers = [('decode_config.engine_kwargs', 'no'), ('', 'neither')]\n"
        "print(json.dumps([{'where': where, 'what': what} for where, what in answers]))\n",
    )
    errors = [finding for finding in ask_ray(subject(tmp_path, EKS)) if finding.code == "R901"]
    assert [(f.severity, f.field) for f in errors] == [("error", "decode"), ("error", "")]
    assert "decode_config.engine_kwargs: no" in errors[0].what


def test_without_ray_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    (only,) = ask_ray(subject(tmp_path, EKS))
    assert (only.code, only.severity) == ("R902", "warning")
    assert "not installed" in only.what


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise ImportError('libfoo is missing')", "libfoo is missing"),
        ("import time; time.sleep(9)", "did not answer"),
    ],
)
def test_a_ray_that_can_not_answer_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, said: str
) -> None:
    probe_that(monkeypatch, tmp_path, program)
    monkeypatch.setattr(ray_schema, "PATIENCE_S", 0.4)
    found = ask_ray(subject(tmp_path, EKS))
    assert {finding.code for finding in found} == {"R902"}
    assert said in found[0].what


def test_what_can_not_be_rendered_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe_that(monkeypatch, tmp_path, "raise SystemExit(1)")
    found = ask_ray(subject(tmp_path, "on: eks\n"))
    assert [finding.code for finding in found] == ["R902"]
    assert "embedded" in found[0].what


@pytest.mark.engines
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("", False),
        (f"{EKS}decode: {{autoscaling_config: {{max_replicas: 3}}, max_ongoing_requests: 32}}\n", False),
        (f"{EKS}topology: aggregated\n", False),
        (f"{EKS}decode: {{autoscaling_config: {{min_replicas: 4, max_replicas: 2}}}}\n", True),
    ],
)
def test_rays_own_classes_take_what_is_rendered(tmp_path: Path, text: str, refused: bool) -> None:
    assert sys.executable
    errors = [finding for finding in ask_ray(subject(tmp_path, text)) if finding.severity == "error"]
    assert bool(errors) is refused
