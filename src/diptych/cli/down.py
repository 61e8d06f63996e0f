"""`diptych down`: what is on this machine at once; what is on a cluster after one question."""

from pathlib import Path

from diptych.cli.console import format_bytes, out
from diptych.cli.places import LOCAL, the_service
from diptych.errors import DocumentError


def run_down(
    file: Path | None,
    name: str | None,
    *,
    steps: list[str],
    yes: bool,
    dry_run: bool,
    timeout: str | None,
    forget: bool = False,
) -> int:
    """Take a service down; 0 when nothing of it is left.

    Args:
        forget: delete nothing; only forget a service whose cluster is gone for good.

    Raises:
        DiptychError: it is not up, something does not go, or is left.
    """
    chosen = the_service(file, name)
    if forget:
        if steps or dry_run or timeout is not None:
            raise DocumentError("--forget deletes nothing: it goes with --name, a document and --yes only.")
        from diptych.cli.forget import run_forget

        return run_forget(chosen, yes=yes)
    if chosen.place == LOCAL:
        if dry_run or set(steps) - {"service"}:
            raise DocumentError(
                f"{chosen.name} is on this machine, where there is one step and no dry run.",
                f"diptych down --name {chosen.name}",
            )
        return _take_down_here(chosen.name)
    from diptych.cli.cluster_down import run_cluster_down
    from diptych.cli.cluster_prepared import Options
    from diptych.cli.cluster_up import seconds, steps_of

    options = Options(steps_of(chosen.place, steps), yes=yes, dry_run=dry_run, timeout_s=seconds(timeout))
    return run_cluster_down(chosen, options)


def _take_down_here(name: str) -> int:
    from diptych.local.down import take_down

    ended = take_down(name)
    memory = format_bytes(sum(process.rss_bytes for process in ended.processes))
    out().print(
        f"{name} is down: {len(ended.processes)} processes ended ({memory} resident) in {ended.took_s:.1f} s; "
        "none is left.",
        highlight=False,
    )
    return 0
