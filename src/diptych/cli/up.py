"""`diptych up`: a live view of the stages, then how to talk to the endpoint."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from diptych.cli.console import err, format_duration, out, print_dim
from diptych.cli.places import LOCAL
from diptych.cli.view import LiveView
from diptych.errors import DocumentError
from diptych.local.planning import stages
from diptych.local.up import Service, bring_up
from diptych.spec import Document, load

# Without a limit a small model may talk until its context is full: minutes.
_MAX_TOKENS = 64
_MESSAGES = '[{"role": "user", "content": "Hello!"}]'


def run_up(
    file: Path | None,
    overrides: list[str],
    *,
    foreground: bool = False,
    steps: Sequence[str] = (),
    timeout: str | None = None,
    **clusters: bool,
) -> int:
    """Bring the service up where its document says; 0 when it is ready (or was), 130 after Ctrl-C.

    Args:
        foreground: stay and take it down on Ctrl-C; on this machine.
        steps, timeout, clusters: as `cluster_prepared.Options` has them.
    """
    document = load(file, overrides)
    if document.on == LOCAL:
        _require_one_step(steps, clusters)
        return _up_here(file, overrides, document, foreground=foreground)
    from diptych.cli.cluster_prepared import Options
    from diptych.cli.cluster_up import run_cluster_up, seconds, steps_of

    if foreground:
        raise DocumentError(f"--foreground is for this machine; the document says on: {document.on}.")
    options = Options(steps_of(document.on, steps), timeout_s=seconds(timeout), **clusters)
    return run_cluster_up(file, overrides, document, options)


def _require_one_step(steps: Sequence[str], clusters: Mapping[str, bool]) -> None:
    if set(steps) - {"service"} or clusters.get("dry_run"):
        raise DocumentError(
            "On this machine there is one step, service, and no dry run.",
            "`diptych render` shows what is started.",
        )
    if clusters.get("kubeconfig"):
        raise DocumentError("--kubeconfig is for clusters that Diptych makes; the document says on: local.")


def _up_here(file: Path | None, overrides: list[str], document: Document, *, foreground: bool) -> int:
    _require_a_clean_check(file, overrides)
    view = LiveView(err(), ("model", *stages(document.topology)))
    began = time.monotonic()
    services = bring_up(document, file, view, hold=foreground)
    try:
        with view:
            service = next(services)
    except KeyboardInterrupt:
        err().print("Interrupted: nothing is left running.")
        return 130
    held = foreground and not service.already
    try:
        _announce(service, time.monotonic() - began)
        if held:
            err().print("Press Ctrl-C to take it down.", style="dim")
        for _ in services:
            pass
    except KeyboardInterrupt:
        services.close()
        stays = f"{service.state.name} stays up; `diptych down` takes it down."
        err().print("Taken down: nothing is left running." if held else stays)
        return 0 if held else 130
    return 0


def _require_a_clean_check(file: Path | None, overrides: list[str]) -> None:
    """Say what may go wrong; refuse what will."""
    from diptych.check import check_file
    from diptych.cli.check import this_machine

    report = check_file(file, overrides, offline=True, machine=this_machine)
    for finding in report.findings:
        if finding.severity == "warning":
            print_dim(err(), f"{finding.code} {finding}")
    errors = [f"{each.code} {each}" for each in report.findings if each.severity == "error"]
    if errors:
        raise DocumentError("\n".join(errors), "docs/checks.md explains each code.")


def _announce(service: Service, took_s: float) -> None:
    state, console = service.state, out()

    def line(text: str = "") -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    if service.already:
        line(f"{state.name} is up already and was left alone: {state.model} at {state.url}/v1")
    else:
        line(f"{state.name} is ready after {format_duration(took_s)}: {state.model} at {state.url}/v1")
    line()
    line(f"  curl {state.url}/v1/chat/completions -H @{service.paths.curl_header} \\")
    line("    -H 'Content-Type: application/json' \\")
    line(f"""    -d '{{"model": "{state.model}", "max_tokens": {_MAX_TOKENS}, "messages": {_MESSAGES}}}'""")
    line()
    line(f"  python -c '{_python_line(service)}'")
    line()
    line("  diptych chat    talk to it; shows what each phase took")
    line("  diptych status  what is up        diptych down  take it down")


def _python_line(service: Service) -> str:
    """One line for the official client; in single quotes for the shell."""
    state = service.state
    key = f'pathlib.Path("{_key_file(service)}").read_text().split()[0]'
    asked = f'model="{state.model}", max_tokens={_MAX_TOKENS}, messages={_MESSAGES}'
    return (
        f'import openai, pathlib; client = openai.OpenAI(base_url="{state.url}/v1", api_key={key}); '
        f"print(client.chat.completions.create({asked}).choices[0].message.content)"
    )


def _key_file(service: Service) -> str:
    from diptych.local.status import endpoint_of

    return str(endpoint_of(service.state.name).api_key_file)
