"""The commands. Each reads its options, calls what does the work, and prints what came of it."""

import errno
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from diptych import __version__
from diptych.cli.console import cannot_write, drop_output, err, print_dim, print_error
from diptych.errors import DiptychError

app = typer.Typer(
    name="diptych",
    help="Serve one large language model with prefill and decode apart, behind one OpenAI-compatible endpoint.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

DOCUMENT = "diptych.yaml"
NO_DOCUMENT = "No document: the embedded model, on this machine."
StepOption = Annotated[
    list[str] | None,
    typer.Option("--step", help="This step alone: cluster, nodes, operator or service. May be repeated."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Change nothing; print each change.")]
TimeoutOption = Annotated[
    str | None, typer.Option("--timeout", help="Deadline of each wait, like 90m; else it is derived.")
]
FileOption = Annotated[
    Path | None, typer.Option("--document", help="The document of the service, instead of its name.")
]
ServiceArgument = Annotated[
    Path | None, typer.Argument(help="The document of the service. Default: the one that is up.")
]
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
    foreground: Annotated[
        bool, typer.Option(help="Stay, and take it down on Ctrl-C; on this machine.")
    ] = False,
    step: StepOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    offline: Annotated[
        bool, typer.Option(help="Check neither account, cluster nor hub before; on clusters.")
    ] = False,
    timeout: TimeoutOption = None,
    replace: Annotated[
        bool,
        typer.Option(help="Go on though it ends what serves now, or needs the GPUs of a second cluster."),
    ] = False,
    kubeconfig: Annotated[
        bool,
        typer.Option(
            "--kubeconfig",
            help="Add the cluster to your own kubeconfig, too; on EKS. Its comments go, to a copy beside it.",
        ),
    ] = False,
) -> None:
    """Bring the service up and wait until a KV transfer is proven."""
    from diptych.cli.up import run_up

    overrides = list(set_ or [])
    overrides += [f"model.source={json.dumps(model)}"] if model is not None else []
    overrides += [f"access.port={port}"] if port is not None else []
    overrides += [f"name={json.dumps(name)}"] if name is not None else []
    clusters = {
        "yes": yes,
        "dry_run": dry_run,
        "offline": offline,
        "replace": replace,
        "kubeconfig": kubeconfig,
    }
    raise typer.Exit(
        run_up(
            _the_document(file),
            overrides,
            foreground=foreground,
            steps=step or [],
            timeout=timeout,
            **clusters,
        )
    )


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
    offline: Annotated[bool, typer.Option(help="Ask neither account, cluster nor hub.")] = False,
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
def status(
    file: ServiceArgument = None,
    name: NameOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Show what is up, per step and phase, and the first thing that blocks."""
    from diptych.cli.status import run_status

    raise typer.Exit(run_status(file, name, watch=watch, json_output=json_output))


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
    nccl: Annotated[
        bool,
        typer.Option(
            "--nccl", help="On EKS: measure NCCL between the nodes as well; answers stall meanwhile."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="With --nccl: don't ask whether to go on.")
    ] = False,
) -> None:
    """Prove the split, the transport, its speed and the answers of a service that is up."""
    from diptych.cli.places import reached, remember_fallback, the_service
    from diptych.cli.verify import network_for_nccl, run_verify, run_watch

    chosen = the_service(file, name)
    network = network_for_nccl(chosen, watch=watch, yes=yes) if nccl else None
    if nccl and network is None:
        raise typer.Exit(1)
    how: Any = {
        "json_output": json_output,
        "allow_fallback": allow_fallback,
        "remember": lambda says: remember_fallback(chosen, says),
    }
    with reached(chosen, admin=True) as endpoint:
        if watch:
            raise typer.Exit(run_watch(endpoint, period_s=period, **how))
        raise typer.Exit(run_verify(endpoint, network=network, **how))


@app.command()
def chat(
    text: Annotated[str | None, typer.Argument(help="What to say; `-` reads it from standard input.")] = None,
    name: NameOption = None,
    document: FileOption = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens in an answer.", min=1)] = 512,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0 is greedy.", min=0)
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Talk to the model; below each answer stands what every phase took."""
    from diptych.cli.chat import run_chat
    from diptych.cli.places import reached, the_service

    with reached(the_service(document, name)) as endpoint:
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


bench_app = typer.Typer(
    help="Load a service that is up; numbers per phase.", invoke_without_command=True, no_args_is_help=False
)
app.add_typer(bench_app, name="bench")


@bench_app.callback()
def bench(
    context: typer.Context,
    name: NameOption = None,
    document: FileOption = None,
    preset: Annotated[str | None, typer.Option(help="rag, summarise, agent or chat.")] = None,
    rate: Annotated[str | None, typer.Option(help="Requests per second; several: 1,2,4.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Most requests at once.", min=1)] = None,
    arrivals: Annotated[str | None, typer.Option(help="poisson (default) or fixed.")] = None,
    input_tokens: Annotated[int | None, typer.Option("--input", help="Tokens of a prompt.", min=1)] = None,
    output_tokens: Annotated[int | None, typer.Option("--output", help="Tokens of an answer.", min=1)] = None,
    shared_tokens: Annotated[
        int | None, typer.Option("--shared", help="Tokens at their beginning that prompts share.", min=0)
    ] = None,
    requests: Annotated[int | None, typer.Option(help="How many requests.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Of arrivals and tokens.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Replay a trace: Mooncake's JSON lines or Azure's CSV.")
    ] = None,
    speed: Annotated[
        float | None, typer.Option(help="Replay the trace so many times as fast.", min=0.01)
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help='Send prompts of your own: lines of {"prompt": …, "output_tokens": …}.'),
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder with the model's tokenizer.")] = None,
    slo: Annotated[str | None, typer.Option(help="Bounds for goodput, like ttft=1s,tpot=15ms.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report with pictures.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Load a service that is up with vLLM's own client; numbers per phase."""
    from diptych.bench.slo import Slo
    from diptych.cli.bench import Asked, run_bench, workloads_of
    from diptych.cli.places import the_service
    from diptych.errors import DocumentError

    workloads = workloads_of(
        preset,
        rate,
        trace=trace,
        speed=speed,
        prompts=prompts,
        concurrency=concurrency,
        arrivals=arrivals,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        shared_tokens=shared_tokens,
        requests=requests,
        seed=seed,
    )
    bounds = Slo.parse(slo) if slo is not None else None
    asked = Asked(workloads, bounds, tokenizer, html, json_output)
    if context.invoked_subcommand is None:
        raise typer.Exit(run_bench(the_service(document, name), asked))
    if name is not None or document is not None:
        raise DocumentError("A comparison goes by a document.", "Name it after `compare`: … compare FILE")
    context.obj = asked


@bench_app.command()
def compare(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(help="The document. Default: diptych.yaml, else the embedded model, here."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a field: a.b=c. May be repeated.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="How often each side is brought up, the other first each time.", min=1)
    ] = 2,
    repeats: Annotated[int, typer.Option(help="How often each load is sent while a side is up.", min=1)] = 1,
    ratio: Annotated[
        str | None,
        typer.Option(help="Replicas of prefill and decode to try: 1:1,1:2. Default: the document's."),
    ] = None,
    results: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Bring nothing up: compare two files of `bench --json`, a split and aggregated."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="On a cluster: don't ask whether the service may be changed.")
    ] = False,
    timeout: TimeoutOption = None,
) -> None:
    """Bring the document up as a split and aggregated in turn, load both alike, and give a verdict.

    What is sent stands before `compare`: diptych bench --preset rag --rate 1,2 compare FILE

    On a cluster the service that is there becomes each side in turn, and at the end what it was.
    """
    from diptych.cli.bench import run_compare, run_recorded
    from diptych.cli.cluster_up import seconds

    if results is not None:
        raise typer.Exit(run_recorded(results, context.obj, _options_given(context)))
    raise typer.Exit(
        run_compare(
            _the_document(file),
            list(set_ or []),
            context.obj,
            rounds=rounds,
            repeats=repeats,
            ratios=ratio,
            yes=yes,
            timeout_s=seconds(timeout),
        )
    )


def _options_given(context: typer.Context) -> list[str]:
    """The options and arguments that the command line has, those before the command included."""
    found = []
    for each in filter(None, (context.parent, context)):
        for parameter in each.command.params:
            source = each.get_parameter_source(parameter.name or "")
            if source is not None and source.name == "COMMANDLINE":
                found.append(parameter.opts[0])
    return found


@app.command()
def logs(
    phase: Annotated[
        str | None, typer.Argument(help="prefill, decode, aggregated or ray. Default: the phases.")
    ] = None,
    name: NameOption = None,
    document: FileOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay and print what is written.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", help="Lines of each phase from the end.", min=1)
    ] = 200,
) -> None:
    """Show the engines' logs by phase."""
    from diptych.cli.logs import run_logs
    from diptych.cli.places import the_service

    raise typer.Exit(run_logs(the_service(document, name), phase, follow=follow, lines=lines))


@app.command()
def forward(
    file: ServiceArgument = None,
    name: NameOption = None,
    port: Annotated[int, typer.Option(help="Local port; 0: any that is free.", min=0, max=65535)] = 8000,
) -> None:
    """Keep a local port open to a service on a cluster."""
    from diptych.cli.forward import run_forward
    from diptych.cli.places import the_service

    raise typer.Exit(run_forward(the_service(file, name), port))


@app.command()
def down(
    file: ServiceArgument = None,
    name: NameOption = None,
    step: StepOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    timeout: TimeoutOption = None,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            help="Delete nothing; only forget a service whose Kubernetes cluster is gone for good.",
        ),
    ] = False,
) -> None:
    """Take the service down, and prove that nothing is left."""
    from diptych.cli.down import run_down

    raise typer.Exit(
        run_down(file, name, steps=step or [], yes=yes, dry_run=dry_run, timeout=timeout, forget=forget)
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
