"""What every step on EKS is given: a kube job, and the AWS account in which it runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diptych.check.account import Identity
from diptych.eks.aws import Session, action_of
from diptych.errors import DiptychError
from diptych.kube.job import Job
from diptych.kube.waiting import Seen, wait_for

STEPS = ("cluster", "nodes", "operator", "service")
"""The steps in the order of `up`; `down` goes the other way."""


@dataclass(frozen=True)
class Place:
    """Where something of ours lies: account, region and name of the cluster."""

    account: str
    region: str
    cluster: str

    def __str__(self) -> str:
        return f"the cluster {self.cluster} in {self.region} of account {self.account}"


@dataclass(frozen=True, kw_only=True)
class EksJob(Job):
    """One document on its way up or down on EKS.

    Args:
        session: the account and the region, as AWS's own rules find them.
        remembered: where an earlier `up` of this document was; None where nobody remembers. A job in another account
            or region stops before it changes anything.
        every_s: seconds between two looks at what is under way.
    """

    session: Session = field(repr=False)
    remembered: Place | None = None
    every_s: float = 5.0

    @property
    def identity(self) -> Identity:
        """Who changes things, asked of AWS once."""
        return self.session.who()

    @property
    def place(self) -> Place:
        """Where this job works."""
        return Place(self.identity.account, self.document.eks.region, self.document.cluster_name)

    @property
    def kubeconfig(self) -> Path:
        """The cluster's own kubeconfig; never the user's."""
        return self.folder / "kubeconfig"

    def change(self, service: str, operation: str, about: str, **arguments: Any) -> Any:
        """One request that changes something; told instead of made where nothing is to be changed.

        Args:
            about: what it is done to, for the one who reads along.
        """
        if self.dry_run:
            self.view.say(f"would call {action_of(service, operation)}: {about}")
            return None
        return self.session.call(service, operation, **arguments)

    def wait(self, stage: str, look: Callable[[], Seen], usual_s: float) -> None:
        """Wait until `look` is satisfied, three times as long as it usually takes, or as long as was set."""
        if self.dry_run:
            return
        wait_for(
            look,
            stage=stage,
            view=self.view,
            deadline_s=self.timeout_s or 3 * usual_s,
            every_s=self.every_s,
        )

    def take(self, step: str, work: Callable[[], str]) -> None:
        """Do one step and tell of its start and its end; `work` says what came of it.

        Raises:
            DiptychError: it did not come about.
        """
        self.tell("start", step)
        try:
            text = work()
        except DiptychError as error:
            self.tell("failed", step, error.message, error.hint)
            raise
        self.tell("done", step, text)

    def now(self) -> float:
        """Unix seconds."""
        return time.time()
