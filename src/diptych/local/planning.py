"""From a document to a plan: what this machine gives each phase, checked before anything starts."""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diptych.catalog.instances import GIB, MIB
from diptych.check.facts import installed_engines
from diptych.errors import ModelError, StartError
from diptych.local.budget import Demand, check_memory, default_max_model_len
from diptych.local.environment import has_cuda_engine
from diptych.local.events import STAGES, STAGES_AGGREGATED
from diptych.local.hardware import Hardware, detect, share_cores
from diptych.local.ingress import choose_haproxy
from diptych.local.keys import secret_variables, write_keys
from diptych.local.paths import ServicePaths
from diptych.local.plan import Plan
from diptych.local.ports import LOOPBACK, choose_port, free_ports
from diptych.local.state import ports_of_others
from diptych.models.config import DTYPE_BYTES, ModelShape, read_model_shape, weight_bytes
from diptych.models.on_cpu import default_kv_cache
from diptych.render.engine import link_of
from diptych.render.layout import group_name
from diptych.render.serve import APPLICATION, PhasePlace, Place, serve_config
from diptych.spec import Document, PhaseSection

_OBJECT_STORE_BYTES = 128 * MIB
_UNSIZED_KV_CACHE = 1024 * MIB
_START_DEADLINE_S = 900.0
_GPU_MEMORY = 0.9
_GPU_RESERVE = 3 * GIB
_LEAST_GPU_KV_CACHE = 512 * MIB


@dataclass(frozen=True)
class Model:
    """A model that lies on this machine."""

    directory: Path
    source: str
    embedded: bool


def make_plan(
    document: Document,
    model: Model,
    paths: ServicePaths,
    say: Callable[[str], None],
) -> Plan:
    """Work out the whole plan; writes the key files, starts nothing.

    Args:
        say: told, in a sentence each, what was decided that a user would not expect.

    Raises:
        DiptychError: what the document asks for cannot be had on this machine.
    """
    hardware = detect()
    port, moved = choose_port(document.access.port, ports_of_others(document.name))
    if moved:
        say(moved)
    phases: dict[str, PhaseSection] = {
        group_name(document, name): one for name, one in document.phases.items()
    }
    on_gpu = bool(hardware.gpus) and has_cuda_engine()
    share_out = _gpu_shares if on_gpu else _cpu_shares
    shares = share_out(document, phases, model, hardware, say)
    key_file = write_keys(document, paths)
    if document.access.api_keys == "none":
        say("Clients on this machine need no key (access.api_keys: none).")
    place = Place(
        model_path=str(model.directory),
        model_name=document.model.name,
        host=LOOPBACK,
        phases=shares,
        api_key_file=str(key_file),
        admin_key_file=str(paths.admin_key),
        engine_defaults=_engine_defaults(model, shares),
        environment=_engine_environment(document, model, on_gpu),
        link=link_of(document, _shape(model), installed_engines().vllm, on_gpu=on_gpu),
    )
    return Plan(
        name=document.name,
        run_id=secrets.token_hex(8),
        application=APPLICATION,
        topology=document.topology,
        model=place.model_name,
        serve_config=serve_config(document, place),
        host=LOOPBACK,
        port=port,
        api_key_file=str(key_file),
        admin_key_file=str(paths.admin_key),
        phases=list(phases),
        engine_stages=[stage for stage in stages(document.topology) if stage.endswith("engine")],
        events=str(paths.events),
        ray_directory=str(paths.ray),
        ray_logs=str(paths.ray_logs),
        ray_token_file=str(paths.ray_token),
        num_cpus=sum(phase.num_replicas for phase in phases.values()),
        num_gpus=len(hardware.gpus) if on_gpu else 0,
        object_store_bytes=_OBJECT_STORE_BYTES,
        start_deadline_s=_START_DEADLINE_S,
        withheld_variables=secret_variables(document),
        haproxy_ports=choose_haproxy(
            document, paths.ray, {share.side_channel_port for share in shares.values()}, say
        ),
    )


def stages(topology: str) -> tuple[str, ...]:
    """The stages that `up` waits for, in order."""
    return STAGES_AGGREGATED if topology == "aggregated" else STAGES


def _cpu_shares(
    document: Document,
    phases: dict[str, PhaseSection],
    model: Model,
    hardware: Hardware,
    say: Callable[[str], None],
) -> dict[str, PhasePlace]:
    """Each replica's cores and KV cache; refuses what does not fit into memory."""
    shape = _shape(model)
    replicas = [phase.cores for phase in phases.values() for _ in range(phase.num_replicas)]
    cores = share_cores(hardware.cores, replicas)
    if len(replicas) > len(hardware.cores):
        say(f"{len(replicas)} replicas share {len(hardware.cores)} cores: they will slow each other down.")
    demands, shares, weights = [], {}, _weights(model, document.engine_kwargs)
    side_channel_ports = free_ports(len(phases))
    for (name, phase), side_channel_port in zip(phases.items(), side_channel_ports, strict=True):
        kwargs = _kwargs(document, phase)
        kv_cache = _kv_cache_bytes(phase, kwargs, model, shape)
        demands.append(Demand(name, phase.num_replicas, _in_memory(weights, kwargs, model, shape), kv_cache))
        mine, cores = cores[: phase.num_replicas], cores[phase.num_replicas :]
        shares[name] = PhasePlace(tuple(mine), kv_cache, 0.0, side_channel_port)
    check_memory(demands, hardware)
    return shares


def _shape(model: Model) -> ModelShape | None:
    """The model's numbers; None for layers that we don't know: then the engine says whether it fits."""
    try:
        return read_model_shape(model.directory)
    except ModelError:
        return None


def _weights(model: Model, kwargs: dict[str, Any]) -> int:
    """The size of the weights in bytes: on disk, whatever their format, or of random ones by the model's config."""
    try:
        if kwargs.get("load_format") == "dummy":
            return read_model_shape(model.directory).weights().gpu_bytes
        return weight_bytes(model.directory)
    except ModelError:
        return sum(path.stat().st_size for path in model.directory.glob("*.bin"))


def _kwargs(document: Document, phase: PhaseSection) -> dict[str, Any]:
    """The arguments of vLLM for a phase: the shared ones, and over them its own."""
    return document.engine_kwargs | phase.engine_kwargs


def _own_kv_cache(phase: PhaseSection, kwargs: dict[str, Any]) -> int | None:
    """What the document gives a phase's KV cache, in bytes; None: nothing."""
    explicit = kwargs.get("kv_cache_memory_bytes")
    return explicit if isinstance(explicit, int) else phase.kv_cache_memory


def _kv_cache_bytes(
    phase: PhaseSection, kwargs: dict[str, Any], model: Model, shape: ModelShape | None
) -> int:
    own = _own_kv_cache(phase, kwargs)
    if own is not None:
        return own
    if shape is None:
        return _UNSIZED_KV_CACHE
    per_token = shape.kv_bytes_per_token(_dtype_bytes(kwargs, model, shape))
    return default_kv_cache(per_token, default_max_model_len(shape.context_length, kwargs))


def _dtype_bytes(kwargs: dict[str, Any], model: Model, shape: ModelShape | None) -> int:
    name = kwargs.get("dtype") or ("float32" if model.embedded else "auto")
    return DTYPE_BYTES.get(str(name), DTYPE_BYTES.get(str(shape.dtype if shape else None), 2))


def _in_memory(on_disk: int, kwargs: dict[str, Any], model: Model, shape: ModelShape | None) -> int:
    """The weights' size once loaded: another type than on disk changes it."""
    stored = DTYPE_BYTES.get(str(shape.dtype if shape else None), 2)
    return on_disk * _dtype_bytes(kwargs, model, shape) // stored


def _gpu_shares(
    document: Document,
    phases: dict[str, PhaseSection],
    model: Model,
    hardware: Hardware,
    say: Callable[[str], None],
) -> dict[str, PhasePlace]:
    """Its own GPUs for each replica where there are enough, else an equal share of those there are.

    Raises:
        StartError: replicas that need several GPUs each cannot have them.
    """
    wanted = {name: _gpus_of(document, phase) for name, phase in phases.items()}
    total = sum(wanted[name] * phase.num_replicas for name, phase in phases.items())
    shares: dict[str, float] = dict(wanted)
    own = {name: _own_kv_cache(phase, _kwargs(document, phase)) for name, phase in phases.items()}
    if total > len(hardware.gpus):
        if max(wanted.values()) > 1:
            raise StartError(
                f"{total} GPUs are needed, {len(hardware.gpus)} are here.",
                "Lower tensor_parallel_size or the number of replicas.",
            )
        share = _gpu_fraction(total, len(hardware.gpus))
        shares = dict.fromkeys(wanted, share)
        weights = _weights(model, document.engine_kwargs)
        for name in own:
            own[name] = _shared_gpu_kv_cache(share, min(hardware.gpus), weights, own[name], name)
        say(
            f"{total} replicas share {len(hardware.gpus)} GPU(s): each gets {share:.0%} of one and of its memory."
        )
    ports = free_ports(len(phases))
    return {
        name: PhasePlace((), own[name], shares[name], port) for name, port in zip(phases, ports, strict=True)
    }


def _gpus_of(document: Document, phase: PhaseSection) -> int:
    kwargs = _kwargs(document, phase)
    return int(kwargs.get("tensor_parallel_size", 1)) * int(kwargs.get("pipeline_parallel_size", 1))


def _shared_gpu_kv_cache(share: float, gpu_memory: int, weights: int, own: int | None, phase: str) -> int:
    """The KV cache of an engine that shares its GPU, in bytes.

    Told to the engine outright: engines that start together would each count the other's memory as gone.

    Args:
        own: what the document gives it.

    Raises:
        StartError: the share holds the weights, but no KV cache worth having, or not the one asked for.
    """
    budget = int(gpu_memory * _GPU_MEMORY * share)
    left = budget - weights - _GPU_RESERVE
    if own is not None:
        if own > left:
            raise StartError(
                f"Too little GPU memory: of a share of {budget / GIB:.1f} GiB {max(0, left) / GIB:.1f} GiB are left "
                f"for a KV cache, and {phase} is to have one of {own / GIB:.1f} GiB.",
                f"Lower {phase}.kv_cache_memory, or give each phase a GPU.",
            )
        return own
    if left < _LEAST_GPU_KV_CACHE:
        raise StartError(
            f"Too little GPU memory: a share of {budget / GIB:.1f} GiB holds {weights / GIB:.1f} GiB of weights "
            f"and {_GPU_RESERVE / GIB:.1f} GiB for computing, which leaves no room for a KV cache.",
            "Choose a smaller model, a second GPU, or `topology: aggregated`.",
        )
    return left


def _gpu_fraction(replicas: int, gpus: int) -> float:
    """The share of one GPU for each of more replicas than GPUs: as many on each GPU as must be."""
    return math.floor(100 / math.ceil(replicas / gpus)) / 100


def _engine_defaults(model: Model, shares: dict[str, PhasePlace]) -> dict[str, Any]:
    """What the engines get unless the document says otherwise."""
    shape = _shape(model)
    defaults: dict[str, Any] = {}
    if shape is not None:
        defaults["max_model_len"] = default_max_model_len(shape.context_length, {})
    gpus = next(iter(shares.values())).gpus
    if gpus:
        defaults["gpu_memory_utilization"] = round(_GPU_MEMORY * min(gpus, 1.0), 2)
    else:
        defaults["enforce_eager"] = True
        if model.embedded:
            defaults["dtype"] = "float32"
    if model.embedded:  # what its authors sample with; at vLLM's default temperature it drifts into noise
        defaults["override_generation_config"] = {"temperature": 0.2, "top_p": 0.9}
    return defaults


def _engine_environment(document: Document, model: Model, on_gpu: bool) -> dict[str, str]:
    """What the engines' processes get beside what all processes get."""
    variables = {}
    shape = _shape(model)
    if shape is not None and shape.has_recurrent_state:
        variables["VLLM_SSM_CONV_STATE_LAYOUT"] = "DS"  # the only layout in which NIXL can move it
    if on_gpu:  # the sampler is compiled at first use, from sources that wheels lack
        variables["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    elif document.engine_kwargs.get("enforce_eager", True):
        # else the first request with top_p waits ten seconds for a compiler
        variables["TORCHDYNAMO_DISABLE"] = "1"
    return variables
