"""The service on two hosts: prefill on one, decode and Ray's head on the other, this machine outside of both.

The application is deployed by the process that deploys it for `diptych up`; only Ray is started by hand, once per host.
Both engines have `held_connector`, for a KV transfer that is cut in its middle.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diptych.endpoint import Endpoint
from diptych.local.environment import service_environment
from diptych.local.events import EventLog
from diptych.local.keys import write_keys
from diptych.local.paths import ServicePaths
from diptych.local.plan import Plan
from diptych.local.state import ServiceState, save
from diptych.models.hub import resolve_model
from diptych.render.serve import PhasePlace, Place, serve_config
from diptych.spec import Document, load
from engines.link import FOLDER_ENV, Link
from engines.network import Host, Network
from engines.service import NAME, PHASES, Service, seconds_until

PORT, RAY_PORT, SIDE_CHANNEL_PORT = 18461, 6379, 20000
MODEL = "smollm2"
START_TIMEOUT_S = 150.0
MOMENTS_MORE_S = 60.0
KV_CACHE_BYTES = 120 * 2**20
LEASE_S = 10
OBJECT_STORE_BYTES = 128 * 2**20
HELD = "engines.held_connector.Extension"

_SETTINGS = (
    f"name={NAME}",
    "kv_transfer.backend=UCX",
    f"kv_transfer.lease_s={LEASE_S}",
    "engine_kwargs.max_model_len=2048",
    f"engine_kwargs.worker_extension_cls={HELD}",
)
_ENGINES = {"enforce_eager": True, "dtype": "float32"}
_SHARE = 0.001
_STARTED = "Ray runtime started"
# A host that is gone is given up after about 20 s, not after a minute.
_RAY_GIVES_UP = {
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
}


class TwoHosts(Service):
    """The service, up after `start_hosts` and `deploy`, until the network is closed.

    Args:
        root: a directory with a short path, since Ray puts sockets some way below it.
        network: with a host for each phase.
    """

    def __init__(self, root: Path, network: Network) -> None:
        super().__init__(root)
        self.network = network
        self.link = Link(root)
        self._root = root
        self._paths = ServicePaths(self.directory)
        self._paths.create()
        self._mark = uuid.uuid4().hex
        self.hosts: dict[str, Host] = {}

    @property
    def url(self) -> str:
        return f"http://{self.network.addresses['decode']}:{PORT}"

    @property
    def endpoint(self) -> Endpoint:
        """As `diptych verify` needs it."""
        return Endpoint(self.url, self._paths.admin_key, MODEL)

    def start_hosts(self) -> None:
        """Boot both and have Ray run on them."""
        document = load(None, _SETTINGS)
        write_keys(document, self._paths)
        plan = self._plan_for(document)
        plan.save(self._paths.plan)
        for phase in reversed(PHASES):  # Ray's head first
            self.hosts[phase] = self._boot(phase)
            self._expect_ray(phase)
        self._remember(plan)

    def deploy(self) -> None:
        """Deploy the application; it is ready, and proven by what `up` proves, or the test fails."""
        command = [sys.executable, "-m", "diptych.local.deploy", str(self._paths.plan)]
        done = subprocess.run(
            self.hosts["decode"].command(*command),
            env=self._environment("decode"),
            input=f"{self.network.addresses['decode']}:{RAY_PORT}\n",
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S + MOMENTS_MORE_S,
        )
        told = [f"{event.stage} {event.kind} {event.text}" for event in EventLog(self._paths.events).so_far()]
        assert done.returncode == 0, f"{told} {done.stderr[-4000:]}"

    def kill_engine(self, phase: str) -> None:
        """Kill the process that computes for a phase; Serve starts another."""
        self.hosts[phase].kill(self.phases()[phase][0]["engine_pid"])

    def undisturbed(self, prompt: str, max_tokens: int) -> str:
        """The text that a prompt gives while nothing fails, and from no cache."""
        text: str = self.complete(prompt, max_tokens, cache_salt=uuid.uuid4().hex)["choices"][0]["text"]
        return text

    def readiness(self) -> dict[str, Any]:
        """What the decode replica says of its readiness."""
        with self.client(key=self.admin_key) as client:
            told: dict[str, Any] = client.get("/diptych/v1/status").json()["readiness"]
        return told

    def _boot(self, phase: str) -> Host:
        address = self.network.addresses[phase]
        ray = ["ray", "start", f"--node-ip-address={address}", "--block", "--disable-usage-stats"]
        if phase == "decode":
            ray += ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
        else:
            ray += [f"--address={self.network.addresses['decode']}:{RAY_PORT}"]
        ray += ["--num-cpus=1", f"--object-store-memory={OBJECT_STORE_BYTES}"]
        ray += [f'--resources={{"{phase}": 1}}', f"--temp-dir={self._ray(phase)}"]
        command = [str(Path(sys.executable).with_name("ray")), *ray[1:]]
        with (self._root / f"{phase}.log").open("wb") as output:
            return self.network.boot(phase, command, self._environment(phase), output)

    def _ray(self, phase: str) -> Path:
        return self._root / phase[0]

    def _environment(self, phase: str) -> dict[str, str]:
        address = self.network.addresses[phase]
        own = service_environment(self._mark, address, self._paths.ray_token)
        path = [str(Path(__file__).parents[1]), own["PYTHONPATH"]]
        more = {
            # Ray's switch for desktops keeps Ray on one host: `up` sets it on purpose.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
            "PYTHONPATH": ":".join(path),
            "TMPDIR": str(self.temporary),
            "UCX_NET_DEVICES": "eth0",
            FOLDER_ENV: str(self._root),
        }
        return own | _RAY_GIVES_UP | more

    def _expect_ray(self, phase: str) -> None:
        """Wait until Ray runs on a host."""
        host = self.hosts[phase]
        seconds_until(lambda: not host.is_up or _STARTED in self._output(phase), 60.0)
        assert host.is_up, f"Ray did not start on {phase}: {self._output(phase)[-2000:]}"

    def _output(self, phase: str) -> str:
        """What the host's first process said."""
        return (self._root / f"{phase}.log").read_text(errors="replace")

    def _plan_for(self, document: Document) -> Plan:
        decode = self.network.addresses["decode"]
        return Plan(
            name=document.name,
            run_id=self._mark,
            application="diptych",
            topology=document.topology,
            model=MODEL,
            serve_config=self._serve_config(document),
            host=decode,
            port=PORT,
            api_key_file=str(self._paths.api_key),
            admin_key_file=str(self._paths.admin_key),
            phases=list(PHASES),
            engine_stages=[f"{phase} engine" for phase in PHASES],
            events=str(self._paths.events),
            ray_directory=str(self._ray("decode")),
            ray_logs=str(self._ray("decode") / "session_latest" / "logs"),
            ray_token_file=str(self._paths.ray_token),
            num_cpus=1,
            num_gpus=0,
            object_store_bytes=OBJECT_STORE_BYTES,
            start_deadline_s=START_TIMEOUT_S,
        )

    def _serve_config(self, document: Document) -> dict[str, Any]:
        """As on one machine, but each phase bound to its host, whose own address it takes for the side channel."""
        cores = sorted(os.sched_getaffinity(0))
        places = {
            phase: PhasePlace(((cores[number % len(cores)],),), KV_CACHE_BYTES, 0.0, SIDE_CHANNEL_PORT)
            for number, phase in enumerate(PHASES)
        }
        place = Place(
            model_path=str(resolve_model("embedded")),
            model_name=MODEL,
            host=self.network.addresses["decode"],
            phases=places,
            api_key_file=str(self._paths.api_key),
            admin_key_file=str(self._paths.admin_key),
            engine_defaults=_ENGINES,
            environment={"TORCHDYNAMO_DISABLE": "1"},
        )
        config = serve_config(document, place)
        arguments: Mapping[str, Any] = config["applications"][0]["args"]
        for phase in PHASES:
            of_phase = arguments[f"{phase}_config"]
            of_phase["placement_group_config"] = {"bundles": [{"CPU": 1, phase: _SHARE}]}
            del of_phase["runtime_env"]["env_vars"]["VLLM_NIXL_SIDE_CHANNEL_HOST"]
        return config

    def _remember(self, plan: Plan) -> None:
        """Have Diptych's commands know the service as one that `up` has started."""
        state = ServiceState(
            name=plan.name,
            run_id=plan.run_id,
            ray_directory=plan.ray_directory,
            topology=plan.topology,
            model=plan.model,
            model_source="embedded",
            url=plan.url,
            document=None,
            keeper_pid=self.hosts["decode"].pid,
            started_at=time.time(),
        )
        save(self._paths, state)


@contextlib.contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """The service, up; at the end nothing of it is left."""
    with (
        tempfile.TemporaryDirectory(prefix="dt-") as directory,
        contextlib.closing(Network(PHASES)) as network,
    ):
        service = TwoHosts(Path(directory), network)
        service.start_hosts()
        service.deploy()
        yield service
