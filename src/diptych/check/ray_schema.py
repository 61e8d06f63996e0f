"""R9xx: what Ray's own schema classes say of the rendered configuration, asked in a process of its own.

Importing them takes seconds, so it is done only when asked for. The Ray that answers is the one of this Python
environment; a cluster's image may hold another, which R902 then says.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from diptych.catalog.engines import minor
from diptych.check.facts import installed_engines
from diptych.check.findings import Finding
from diptych.check.subject import Subject
from diptych.errors import DiptychError
from diptych.render.bundle import render_one
from diptych.render.inputs import Facts as RenderFacts

PROBE = Path(__file__).with_name("ray_probe.py")
PATIENCE_S = 120.0


def ask_ray(subject: Subject) -> list[Finding]:
    """What Ray's schema refuses in the configuration that this document is rendered to."""
    if importlib.util.find_spec("ray") is None:
        return [
            _not_asked(
                "Ray is not installed in this Python environment", "install ray[serve], or leave out --ray"
            )
        ]
    try:
        config = serve_config_of(subject)
    except DiptychError as error:
        return [
            _not_asked(
                f"the document can't be rendered: {error.message}", error.hint or "correct the document"
            )
        ]
    findings = _refusals(config)
    here, there = installed_engines().ray, subject.engine.ray
    if here and there and minor(here) != minor(there):
        what = f"Ray {here} of this environment was asked, and {subject.engine.source} has Ray {there}"
        findings.append(_not_asked(what, f"run it where Ray {minor(there)} is installed to be sure"))
    return findings


def serve_config_of(subject: Subject) -> str:
    """The Serve configuration that the document is rendered to, as `diptych render` writes it."""
    facts = RenderFacts(shape=subject.shape)
    return render_one(subject.document, facts, "serve")


def _refusals(config: str) -> list[Finding]:
    command = [sys.executable, "-P", str(PROBE)]
    try:
        done = subprocess.run(
            command, input=config, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [_not_asked(f"Ray did not answer within {PATIENCE_S:.0f} s", "try again, or leave out --ray")]
    try:
        answers = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        last = (done.stderr.strip() or "it said nothing").splitlines()[-1][:200]
        return [
            _not_asked(
                f"Ray's schema could not be loaded: {last}", "repair the environment, or leave out --ray"
            )
        ]
    return [_refusal(answer["where"], answer["what"]) for answer in answers]


def _refusal(where: str, what: str) -> Finding:
    phase = next((name for name in ("prefill", "decode") if where.startswith(f"{name}_config")), "")
    return Finding(
        code="R901",
        severity="error",
        where="the rendered Serve configuration",
        field=phase,
        what=f"Ray refuses {where or 'it'}: {what}",
        do="correct the field of the document that this comes from; if there is none, report it to Diptych",
    )


def _not_asked(what: str, do: str) -> Finding:
    return Finding("R902", "warning", "--ray", "", what, do)
