"""eksctl, as we call it: as the same caller, with files from the job's folder; CloudFormation tells how far it is."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from diptych.eks.job import EksJob
from diptych.eks.stacks import Progress
from diptych.kube import programs
from diptych.kube.programs import Finished
from diptych.remembering import write_private

_PATIENCE = 3
"""How many times as long as usual it may take: AWS has slow days, and a first look at capacity takes its time."""


_LIMITED = frozenset({("create", "cluster"), ("create", "nodegroup"), ("delete", "cluster")})
"""Commands that take `--timeout`; without it, they give up after 25 minutes."""


def run(
    job: EksJob,
    stage: str,
    args: Sequence[str],
    *,
    prefix: str,
    usual_s: float,
    files: Mapping[Path, str] | None = None,
) -> Finished:
    """Run eksctl.

    Args:
        files: that it reads, by path.
        prefix: of the stacks that it works on.
        usual_s: seconds that it usually takes; three times that is its deadline, where none was set.

    Returns:
        How it ended. Its exit code proves little: ask AWS what is there.
    """
    tool = programs.find(programs.EKSCTL)
    for path, text in (files or {}).items():
        write_private(path, text)
    limit_s = job.timeout_s or _PATIENCE * usual_s
    limit = [f"--timeout={round(limit_s)}s"] if tuple(args[:2]) in _LIMITED else []
    with Progress(job, stage, prefix, usual_s):
        return programs.run(
            tool,
            [*args, *limit],
            log=job.log("eksctl"),
            timeout_s=limit_s + 60,
            env=job.session.environ({}),
            dry_run=job.dry_run,
            view=job.view,
        )
