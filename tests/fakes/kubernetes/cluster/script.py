"""What a test says is to happen in the cluster: how long things take, what fails, and where nothing moves on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

# Seconds that things take in a real cluster.
SECONDS = {
    "operator": 2.0,  # between two looks of the operator
    "pull": 90.0,
    "start": 5.0,  # of a container, until it runs
    "init": 20.0,  # an init container's work
    "run": 10.0,  # the work of a pod that ends by itself
    "load": 60.0,  # replicas, until they are healthy
    "terminate": 10.0,
    "restart": 10.0,  # the first back-off of a container that ended
}


@dataclass
class Behaviour:
    """What a container does.

    Attributes:
        lines: what it writes when it starts.
        exit_code: with which it ends; None: 0 where it has to end, else it runs on.
        reason: of its end, like "OOMKilled"; by default "Completed" or "Error".
        times: how often it does so; after that it does well. None: always.
        seconds: until it ends, of the cluster's; by default `SECONDS`'.
    """

    lines: Sequence[str] = ()
    exit_code: int | None = None
    reason: str | None = None
    times: int | None = None
    seconds: float | None = None


@dataclass
class Serve:
    """What Ray Serve says of every application once its replicas could start.

    Attributes:
        status: RUNNING, DEPLOYING (for ever), DEPLOY_FAILED or UNHEALTHY.
        message: of the application.
        deployments: status and message of deployments, by patterns of their names like "Prefill:*".
    """

    status: str = "RUNNING"
    message: str = ""
    deployments: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass
class Script:
    """Everything that a test can change, at any time.

    Attributes:
        time_scale: seconds that pass here for one of the cluster's.
        seconds: what takes how long, of the cluster's seconds, as in `SECONDS`.
        held: where nothing moves on while it is named: "operator", "schedule", "pull", "init", "start", "load",
            "run", "restart", "terminate", "finalize" (the cluster's finalizer stays).
        missing_images: patterns of images that can't be pulled.
        image_bytes: the size of every image.
        containers: what containers do, by patterns of "POD/CONTAINER".
        serve: what Serve says.
        invalid: why the operator refuses every RayService; None: it does not.
        cluster_finalizer: a finalizer that the operator puts on RayClusters (`ray.io/gcs-ft-redis-cleanup-finalizer`).
        initializing_timeout_s: instead of the annotation's, of the cluster's seconds.
    """

    time_scale: float = 0.004
    seconds: dict[str, float] = field(default_factory=lambda: dict(SECONDS))
    held: set[str] = field(default_factory=set)
    missing_images: set[str] = field(default_factory=set)
    image_bytes: int = 9_876_543_210
    containers: dict[str, Behaviour] = field(default_factory=dict)
    serve: Serve = field(default_factory=Serve)
    invalid: str | None = None
    cluster_finalizer: str | None = None
    initializing_timeout_s: float | None = None

    clock: float = field(default=0.0, init=False)

    def now(self) -> float:
        """The cluster's clock, seconds."""
        return self.clock

    def pass_time(self, seconds: float) -> None:
        """So much time passes here. A slow machine slows the cluster's clock: nothing then runs out of time."""
        self.clock += min(seconds, 0.05) / self.time_scale

    def behaviour(self, pod: str, container: str) -> Behaviour:
        for pattern, found in self.containers.items():
            if fnmatchcase(f"{pod}/{container}", pattern):
                return found
        return Behaviour()

    def is_missing(self, image: str) -> bool:
        return any(fnmatchcase(image, pattern) for pattern in self.missing_images)
