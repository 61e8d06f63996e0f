"""One run: the split is proven, the engines are warmed, the load is sent, and the service's own records are fetched."""

import time
from pathlib import Path

from diptych.bench.client import Sent, send
from diptych.bench.doubts import doubts, doubts_of_queues, doubts_of_records
from diptych.bench.records import KvUse, fetch_records
from diptych.bench.results import Parts, Result
from diptych.bench.slo import Slo
from diptych.bench.workload import OwnPrompts, Workload
from diptych.endpoint import Endpoint
from diptych.errors import EndpointError
from diptych.progress import Event, View
from diptych.verify.proof import FAILS
from diptych.verify.run import Verification

PROOF, WARM_UP, LOAD, RECORDS = "proof of the split", "warm-up", "load", "records"
STAGES = (PROOF, WARM_UP, LOAD, RECORDS)


class Bench:
    """Measures one endpoint, as often as asked.

    Args:
        endpoint: with a file that holds an admin key.
        tokenizer: a folder with a tokenizer whose tokens the model has.
        folder: private, for traces and the client's logs.
        first_run: numbers the first run; runs of another number on the same engines have other tokens.
        devices, usd_per_hour: of the results.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        tokenizer: Path,
        folder: Path,
        *,
        first_run: int = 1,
        devices: str = "",
        usd_per_hour: float | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._tokenizer = tokenizer
        self._folder = folder
        self._next_run = first_run
        self._devices = devices
        self._usd_per_hour = usd_per_hour
        self._is_warm = False
        self._own_prompts_sent = False

    def run(self, workload: Workload, view: View, slo: Slo | None = None) -> Result:
        """Send a load and say what came of it; the first time after a warm-up.

        Args:
            view: is told of `STAGES`.

        Raises:
            EndpointError: the split is not real, or nothing is answered.
            DiptychError: the client failed.
        """
        with _Stage(view, PROOF):
            topology, versions = self._prove()
            fetch_records(self._endpoint, time.time())  # an endpoint that keeps none says so before the load
        with _Stage(view, WARM_UP):
            if not self._is_warm:
                self._send(workload.warm_up(), view)
            self._is_warm = True
        # The service's clock may differ from this one: the load's records are those after the newest until now.
        before, _ = fetch_records(self._endpoint, 0.0)
        with _Stage(view, LOAD, str(workload.load)), KvUse(self._endpoint) as use:
            sent = self._send(workload, view)
        with _Stage(view, RECORDS):
            newest = max((each["at"] for each in before), default=0.0)
            records, forgotten = fetch_records(self._endpoint, newest)
        parts = Parts(records, use.highest)
        against = doubts(workload.load, sent.samples, sent.lasted_s)
        against += doubts_of_records(topology, sent.samples, parts, forgotten)
        against += doubts_of_queues(workload.load, parts)
        if isinstance(workload, OwnPrompts):
            if self._own_prompts_sent:
                against.append("these prompts were sent before: engines that cache prefixes know them")
            self._own_prompts_sent = True
        return Result(
            load=workload.load,
            topology=topology,
            model=self._endpoint.model,
            began_at=sent.began_at,
            lasted_s=sent.lasted_s,
            samples=sent.samples,
            parts=parts,
            slo=slo,
            devices=self._devices,
            usd_per_hour=self._usd_per_hour,
            versions=versions,
            doubts=tuple(against),
        )

    def _prove(self) -> tuple[str, dict[str, str]]:
        """The topology, `split` only where decode was seen to receive what prefill computed; the engines' versions.

        Raises:
            EndpointError: the split is asked for and is not real; the message has what was seen.
        """
        with Verification(self._endpoint) as verification:
            proof = next(step for step in verification.steps(light=True) if not isinstance(step, str))
            report = verification.report()
        if proof.state == FAILS:
            raise EndpointError(
                f"These numbers would not be those of a split: {proof.says}",
                "`diptych verify` shows the evidence; docs/proof.md has the usual causes.",
            )
        return report.topology, {name: str(version) for name, version in report.versions.items()}

    def _send(self, workload: Workload, view: View) -> Sent:
        """What comes of a load of tokens that no engine has seen in another run."""
        run, self._next_run = self._next_run, self._next_run + 1
        return send(self._endpoint, workload.fresh(run), self._tokenizer, self._folder, view.tick)


class _Stage:
    """Tells the view that a stage starts and is done."""

    def __init__(self, view: View, name: str, text: str = "") -> None:
        self._view, self._name, self._text = view, name, text

    def __enter__(self) -> None:
        self._view.stage(Event("start", self._name, self._text, at=time.time()))

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._view.stage(Event("done", self._name, at=time.time()))
