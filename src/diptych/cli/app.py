"""The commands. Each reads its options, calls what does the work, and prints what came of it."""

import errno
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from diptych import __version__
from diptych.cli.console import cannot_write, drop_output, err, out, print_dim, print_error
from diptych.errors import DiptychError, DocumentError, NotUpError

app = typer.Typer(
    name="diptych",
    help="Serve one large language model with prefill and decode apart, behind one OpenAI-compatible endpoint.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

DEFAULT_NAME = "diptych"
DOCUMENT = "diptych.yaml"
NO_DOCUMENT = "No document: the embedded model, on this machine."
NameOption = Annotated[str | None, typer.Option("--name", help="Name of the service, if several are up.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON; its shape is in docs/json.md.")]


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"diptych {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", help="Print the version and leave.", callback=_print_version, is_eager=True),
]


@app.callback()
def _global(version: VersionOption = False) -> None:
    """Options before the command."""


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="The document to write; `-` prints it.")] = Path(
        "diptych.yaml"
    ),
    model: Annotated[
        str | None, typer.Option(help="A Hugging Face id, a path, s3://bucket/folder, or `embedded`.")
    ] = None,
    on: Annotated[str | None, typer.Option(help="local (default), kubernetes or eks.")] = None,
    instance_type: Annotated[str | None, typer.Option(help="EC2 type of the GPU nodes.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the service.")] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="Make it out of a RayService or Serve configuration; `-` reads it."),
    ] = None,
    app_: Annotated[
        str | None, typer.Option("--app", help="With --from: which application or model, if several.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the document's JSON schema, for editors, and leave.")
    ] = False,
) -> None:
    """Write a document to start from."""
    from diptych.cli.init import run_init, run_schema

    if schema:
        raise typer.Exit(run_schema())
    raise typer.Exit(
        run_init(
            file,
            model=model,
            on=on,
            instance=instance_type,
            name=name,
            from_=from_,
            app=app_,
            force=force,
        )
    )


@app.command()
def up(
    file: Annotated[
        Path | None,
        typer.Argument(help="The document. Default: diptych.yaml, else the embedded model, here."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model instead: a Hugging Face id, a path, or `embedded`.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port of the endpoint: exactly this one.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the service.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a field: a.b=c. May be repeated.")
    ] = None,
    foreground: Annotated[bool, typer.Option(help="Stay, and take it down on Ctrl-C.")] = False,
) -> None:
    """Bring the service up and wait until a KV transfer is proven."""
    from diptych.cli.up import run_up

    overrides = list(set_ or [])
    overrides += [f"model.source={json.dumps(model)}"] if model is not None else []
    overrides += [f"access.port={port}"] if port is not None else []
    overrides += [f"name={json.dumps(name)}"] if name is not None else []
    raise typer.Exit(run_up(_the_document(file), overrides, foreground=foreground))


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(help="The document. Default: diptych.yaml, where there is one.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a field: a.b=c. May be repeated.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print every field and where it came from.")] = False,
    json_output: JsonOption = False,
    offline: Annotated[bool, typer.Option(help="Ask no network for the model's config.")] = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="Ask Ray's own schema as well; takes seconds, needs Ray.")
    ] = False,
) -> None:
    """Find what would fail before anything is started."""
    from diptych.cli.check import run_check

    overrides = list(set_ or [])
    document = _the_document(file, without=NO_DOCUMENT)
    raise typer.Exit(
        run_check(document, overrides, show=show, json_output=json_output, offline=offline, ray=ray)
    )


@app.command()
def render(
    file: Annotated[
        Path | None, typer.Argument(help="The document. Default: diptych.yaml, where there is one.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the files; made if it is not there.")
    ] = None,
    what: Annotated[
        str | None, typer.Option(help="Print one file instead: rayservice, serve, eksctl, policies, …")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a field: a.b=c. May be repeated.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over files that Diptych did not make.")
    ] = False,
) -> None:
    """Write everything that the document stands for."""
    from diptych.cli.render import run_render

    document = _the_document(file, without=NO_DOCUMENT)
    raise typer.Exit(run_render(document, list(set_ or []), folder=output, what=what, force=force))


@app.command()
def status(name: NameOption = None, json_output: JsonOption = False) -> None:
    """Show what is up, and the first thing that blocks."""
    from diptych.cli.status import run_status

    raise typer.Exit(run_status(name, json_output=json_output))


@app.command()
def verify(
    file: Annotated[
        Path | None, typer.Argument(help="The document of the service. Default: the one that is up.")
    ] = None,
    name: NameOption = None,
    json_output: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C; print what changes.")] = False,
    period: Annotated[
        float,
        typer.Option("--period", help="With --watch: seconds from one round to the next.", min=1, max=86400),
    ] = 30.0,
    allow_fallback: Annotated[
        bool,
        typer.Option(
            "--allow-fallback", help="Put up with another transport than was asked for; it is said."
        ),
    ] = False,
) -> None:
    """Prove the split, the transport, its speed and the answers of a service that is up."""
    from diptych.cli.verify import run_verify, run_watch, service_of
    from diptych.local.state import remember_fallback
    from diptych.local.status import endpoint_of

    if file is not None and name is not None:
        raise DocumentError("Both a document and --name say which service is meant.", "Give one of them.")
    chosen = service_of(file) if file else _the_name(name)
    endpoint = endpoint_of(chosen, admin=True)
    how: Any = {"json_output": json_output, "allow_fallback": allow_fallback}
    if watch:
        raise typer.Exit(run_watch(endpoint, period_s=period, **how))
    raise typer.Exit(run_verify(endpoint, remember=lambda says: remember_fallback(chosen, says), **how))


@app.command()
def chat(
    text: Annotated[str | None, typer.Argument(help="What to say; `-` reads it from standard input.")] = None,
    name: NameOption = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens in an answer.", min=1)] = 512,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0 is greedy.", min=0)
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Talk to the model; below each answer stands what every phase took."""
    from diptych.cli.chat import run_chat
    from diptych.local.status import endpoint_of

    endpoint = endpoint_of(_the_name(name))
    raise typer.Exit(
        run_chat(
            endpoint,
            text,
            json_output=json_output,
            max_tokens=max_tokens,
            system=system,
            temperature=temperature,
        )
    )


@app.command()
def logs(
    phase: Annotated[
        str | None, typer.Argument(help="prefill, decode, aggregated or ray. Default: the phases.")
    ] = None,
    name: NameOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay and print what is written.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", help="Lines of each phase from the end.", min=1)
    ] = 200,
) -> None:
    """Show the engines' logs by phase."""
    from diptych.cli.logs import run_logs

    raise typer.Exit(run_logs(_the_name(name), phase, follow=follow, lines=lines))


@app.command()
def down(name: NameOption = None) -> None:
    """Take the service down, and prove that nothing is left."""
    from diptych.cli.console import format_bytes
    from diptych.local.down import take_down

    chosen = _the_name(name)
    ended = take_down(chosen)
    memory = format_bytes(sum(process.rss_bytes for process in ended.processes))
    out().print(
        f"{chosen} is down: {len(ended.processes)} processes ended ({memory} resident) in {ended.took_s:.1f} s; "
        "none is left.",
        highlight=False,
    )


def _the_document(given: Path | None, without: str = "") -> Path | None:
    """The document that is meant: the one named, else `diptych.yaml` where it lies here, else none.

    What was taken without having been named is said; `without` is what to say where there is none.
    """
    if given is not None:
        return given
    here = Path(DOCUMENT)
    told = f"Reading {DOCUMENT}." if here.is_file() else without
    if told:
        print_dim(err(), told)
    return here if here.is_file() else None


def _the_name(given: str | None) -> str:
    """The service that is meant: the one named, else the only one that is up here."""
    if given is not None:
        return given
    from diptych.local.state import known_names

    names = known_names()
    if len(names) > 1:
        raise NotUpError(f"Several services are up here: {', '.join(names)}.", "Say which with --name.")
    return names[0] if names else DEFAULT_NAME


def main() -> None:
    """Run the command line; every failure is a message and an exit code, never a traceback."""
    try:
        code: Any = app(standalone_mode=False)
    except DiptychError as error:
        print_error(error)
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        err().print("Interrupted.")
        code = 130
    except BrokenPipeError:
        drop_output()
        code = 0
    except OSError as error:
        code = _unwritten(error)
    except Exception as error:
        code = _unexpected(error)
    sys.exit(code if isinstance(code, int) else 0)


def _unwritten(error: OSError) -> int:
    """An output that can't be written to is not our fault; any other error of the system would be."""
    if error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT) or error.filename is not None:
        return _unexpected(error)
    drop_output()
    failure = cannot_write(error)
    print_error(failure)
    return failure.exit_code


def _unexpected(error: Exception) -> int:
    """Typer's own usage errors as Typer words them; anything else is ours to fix, and says how to report it."""
    show, exit_code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if callable(show) and isinstance(exit_code, int):
        show()
        return exit_code
    if os.environ.get("DIPTYCH_TEST_TRACEBACK"):
        raise error
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="diptych-error-", suffix=".txt", delete=False) as report:
        traceback.print_exception(error, file=report)
    print_error(
        DiptychError(
            f"Something went wrong inside diptych ({type(error).__name__}: {error}).",
            f"This is a fault of diptych; {report.name} has what is needed to report it.",
        )
    )
    return 70
