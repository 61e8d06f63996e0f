"""M3xx: whether the model fits: on the GPU, in the pod, on the disk, in its own limits."""

import math
from collections.abc import Iterable
from dataclasses import replace

from diptych.catalog.instances import GIB, MIB
from diptych.check.findings import Complaint
from diptych.check.memory import (
    PhaseMemory,
    Unsized,
    image_budget,
    kv_cache_bytes,
    memory_of,
    utilization,
)
from diptych.check.rules import rule
from diptych.check.subject import WITHOUT_BFLOAT16, PhaseView, Subject
from diptych.models.on_cpu import RAY
from diptych.spec.sizes import format_size, parse_size

_STEP = 256 * MIB
_MOST_SHARE = 0.95
_NAME_A_TOKEN = (
    "accept the model's terms on its page, and name a token (model.token_file, token_env or token_secret)"
)


@rule("M301", "error", "A model that is not there")
def model_is_there(subject: Subject) -> Iterable[Complaint]:
    if subject.facts.model.missing:
        yield Complaint("model.source", subject.facts.model.missing, "correct model.source or model.revision")


@rule("M302", "warning", "A model whose config was not found")
def config_is_known(subject: Subject) -> Iterable[Complaint]:
    model = subject.facts.model
    if model.config is None and not model.missing:
        yield Complaint(
            "model.source",
            f"the config.json of {subject.document.model.source} was not found ({model.why}): memory, heads and "
            "hybrid layers are not checked",
            _NAME_A_TOKEN
            if model.refused
            else "let check reach the hub, fetch the model into the hub's cache, or give its folder",
        )


@rule("M316", "warning", "A model that the hub refuses")
def hub_gives_it(subject: Subject) -> Iterable[Complaint]:
    """The config ships with Diptych, the weights don't. A token that is in a secret can't be tried from here."""
    model = subject.facts.model
    if model.config is not None and model.refused and subject.document.model.token_secret is None:
        yield Complaint("model.source", f"{model.refused}: no node would get its weights", _NAME_A_TOKEN)


@rule("M303", "warning", "A model that can't be sized")
def model_can_be_sized(subject: Subject) -> Iterable[Complaint]:
    do = "try it on one node first: the engine says at its start what fits"
    if subject.unknown_shape is not None:
        yield Complaint("model.source", f"its memory is not checked: {subject.unknown_shape}", do)
    for memory in {_key(each): each for each in _unsized(subject) if not each.gpu_unknown}.values():
        yield Complaint(memory.field, f"memory is not checked: {memory.why}", do)


@rule("M304", "warning", "GPUs that are not known")
def gpus_are_known(subject: Subject) -> Iterable[Complaint]:
    for memory in {_key(each): each for each in _unsized(subject) if each.gpu_unknown}.values():
        yield Complaint(
            memory.field,
            f"memory is not checked: {memory.why}",
            "set nodes.instance_type to an EC2 instance type with the same GPU",
        )


@rule("M305", "error", "A model that does not fit the GPU")
def weights_fit(subject: Subject) -> Iterable[Complaint]:
    for view, memory in _alike(subject):
        budget = memory.budget
        if budget.kv_cache < budget.block_bytes and kv_cache_bytes(view) is None:
            yield Complaint(
                view.path("gpu_memory_utilization")
                if "gpu_memory_utilization" in view.kwargs
                else "model.source",
                f"{memory.device} gives {memory.phase} {_gib(budget.requested)} ({utilization(view):g} of "
                f"{_gib(memory.total_bytes)}), and weights ({_gib(budget.weights)}) with computing "
                f"({_gib(_computing(memory))}) take {_gib(budget.requested - budget.kv_cache)}",
                _larger_share(view, memory) or _smaller(memory),
            )
        elif subject.on_gpu and kv_cache_bytes(view) is not None and budget.requested > memory.total_bytes:
            room = memory.total_bytes - (budget.requested - budget.kv_cache)
            yield Complaint(
                _kv_cache_field(view),
                f"is {_gib(budget.kv_cache)}, and with weights ({_gib(budget.weights)}) and computing "
                f"({_gib(_computing(memory))}) that is {_gib(budget.requested)} of {memory.phase}; {memory.device} has "
                f"{_gib(memory.total_bytes)}",
                f"give it {_gib(room)} or less, or remove it" if room > 0 else _smaller(memory),
            )


@rule("M321", "error", "Two sizes of one KV cache")
def kv_cache_has_one_size(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        given, own = view.kwargs.get("kv_cache_memory_bytes"), view.section.kv_cache_memory
        if own is not None and isinstance(given, int) and given != own:
            yield Complaint(
                f"{view.name}.kv_cache_memory",
                f"is {format_size(own)}, and {view.path('kv_cache_memory_bytes')} is {given}: a KV cache has one size",
                "remove one of the two",
            )


@rule("M306", "error", "A KV cache for less than one sequence")
def one_sequence_fits(subject: Subject) -> Iterable[Complaint]:
    for view, memory in _alike(subject):
        budget = memory.budget
        given = kv_cache_bytes(view) is not None or not subject.on_gpu
        if budget.fits or (budget.kv_cache < budget.block_bytes and not given):
            continue
        if given:
            more = f"set {_kv_cache_field(view)} to {_enough_for(view, memory)}"
        else:
            more = _larger_share(view, memory) or _smaller(memory)
        yield Complaint(
            view.path("max_model_len"),
            f"a sequence of {budget.max_model_len} tokens needs {_gib(budget.sequence_bytes)} of KV cache, and that of "
            f"{memory.phase} has {_gib(budget.kv_cache)} on {memory.device}: the engine refuses to start",
            f"lower max_model_len to {_rounded(budget.tokens)} or less, or {more}" if budget.tokens else more,
        )


@rule("M307", "warning", "Images that may leave no room")
def images_leave_room(subject: Subject) -> Iterable[Complaint]:
    for view, memory in _alike(subject):
        budget = image_budget(view)
        if budget is None or budget.fits or not memory.budget.fits:
            continue
        images = budget.activations - memory.budget.activations
        yield Complaint(
            "model.source",
            f"the model reads images, and the engine encodes the largest one at its start: with about {_gib(images)} "
            f"for that, the KV cache of {memory.phase} on {memory.device} is smaller than one sequence",
            "set engine_kwargs.language_model_only: true if no images come, or limit them with limit_mm_per_prompt",
        )


@rule("M311", "error", "A share of GPU memory that can't be")
def utilization_is_a_share(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        share = view.kwargs.get("gpu_memory_utilization")
        if isinstance(share, int | float) and not 0 < share <= 1:
            percent = 10 <= share <= 100
            do = f"write {share / 100:g}" if percent else "write 1 at most, for example 0.9"
            yield Complaint(
                view.path("gpu_memory_utilization"), f"is {share:g}, and must be above 0 and at most 1", do
            )


@rule("M312", "warning", "Nearly all of the GPU's memory")
def utilization_leaves_room(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        share = view.kwargs.get("gpu_memory_utilization")
        if subject.on_gpu and isinstance(share, int | float) and 0.95 < share <= 1:
            yield Complaint(
                view.path("gpu_memory_utilization"),
                f"is {share:g}: what the driver and NIXL take beside the engine is then not free, and a replica that "
                "replaces another one finds too little",
                "write 0.9 to 0.95",
            )


@rule("M313", "error", "Longer sequences than the model was made for")
def length_is_within_model(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        most = subject.shape.context_length if subject.shape else None
        asked = view.kwargs.get("max_model_len")
        if most is not None and isinstance(asked, int) and asked > most and "hf_overrides" not in view.kwargs:
            yield Complaint(
                view.path("max_model_len"),
                f"is {asked}, and the model was made for {most} tokens: the engine refuses to start",
                f"write {most} or less, or give hf_overrides with the rope scaling that the model's page names",
            )


@rule("M314", "error", "A dtype that the GPU does not have")
def gpu_has_dtype(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        instance = view.group.instance if view.group else None
        if (
            instance is not None
            and instance.gpu in WITHOUT_BFLOAT16
            and view.kwargs.get("dtype") == "bfloat16"
        ):
            yield Complaint(
                view.path("dtype"),
                f"is bfloat16, and the {instance.gpu} of {instance.name} can't compute in it",
                "write float16, or use a newer GPU",
            )


@rule("M315", "error", "A machine with too little memory")
def machine_has_memory(subject: Subject) -> Iterable[Complaint]:
    machine = subject.machine
    sized = list(_sized(subject))
    if machine is None or subject.on_gpu or len(sized) < len(subject.phases):
        return
    parts = [(view.section.num_replicas, memory) for view, memory in sized]
    needed = RAY + sum(replicas * memory.total_bytes for replicas, memory in parts)
    if needed > machine.memory:
        each = "; ".join(
            f"{replicas} × {memory.phase} {_gib(memory.total_bytes)} (weights {_gib(memory.budget.weights)}, "
            f"KV cache {_gib(memory.budget.kv_cache)})"
            for replicas, memory in parts
        )
        yield Complaint(
            "model.source",
            f"needs {_gib(needed)} of memory, and this machine has {_gib(machine.memory)}: {each}; Ray {_gib(RAY)}",
            "choose a smaller model, or lower prefill.kv_cache_memory, decode.kv_cache_memory or "
            "engine_kwargs.max_model_len",
        )


def _sized(subject: Subject) -> list[tuple[PhaseView, PhaseMemory]]:
    views = ((view, memory_of(view)) for view in subject.phases)
    return [(view, memory) for view, memory in views if isinstance(memory, PhaseMemory)]


def _alike(subject: Subject) -> list[tuple[PhaseView, PhaseMemory]]:
    """As `_sized`; phases whose memory is the same as one, "prefill and decode"."""
    sized = _sized(subject)
    if len(sized) == 2:
        (view, prefill), (_, decode) = sized
        if replace(prefill, phase=decode.phase) == decode:
            return [(view, replace(prefill, phase="prefill and decode"))]
    return sized


def _unsized(subject: Subject) -> Iterable[Unsized]:
    return (memory for view in subject.phases if isinstance(memory := memory_of(view), Unsized))


def _key(memory: Unsized) -> tuple[str, str]:
    return memory.field, memory.why


def _kv_cache_field(view: PhaseView) -> str:
    by_argument = (
        view.resolved.get("kv_cache_memory_bytes") is not None and "kv_cache_memory_bytes" in view.kwargs
    )
    return view.path("kv_cache_memory_bytes") if by_argument else f"{view.name}.kv_cache_memory"


def _computing(memory: PhaseMemory) -> int:
    budget = memory.budget
    return budget.activations + budget.outside_torch + budget.cuda_graphs


def _smaller(memory: PhaseMemory) -> str:
    ways = "raise tensor_parallel_size, use a GPU with more memory, or a smaller or quantised model"
    without_graphs = 0 < memory.budget.missing <= memory.budget.cuda_graphs
    return f"set enforce_eager: true, {ways}" if without_graphs else ways


def _larger_share(view: PhaseView, memory: PhaseMemory) -> str | None:
    """The share of the GPU with which a sequence fits, where the document gives less and there is so much."""
    budget = memory.budget
    needed = budget.requested - budget.kv_cache + budget.sequence_bytes + budget.block_bytes
    share = math.ceil(needed / memory.total_bytes * 100) / 100
    if "gpu_memory_utilization" not in view.kwargs or not utilization(view) < share <= _MOST_SHARE:
        return None
    return f"raise gpu_memory_utilization to {share:g} or more"


def _enough_for(view: PhaseView, memory: PhaseMemory) -> str:
    """As `_enough`, in bytes where it is vLLM's argument."""
    if not _kv_cache_field(view).endswith("kv_cache_memory_bytes"):
        return _enough(memory)
    return f"{parse_size(_enough(memory))} ({_enough(memory)})"


def _enough(memory: PhaseMemory) -> str:
    """A size of KV cache that holds one sequence and a quarter, as the document takes it."""
    needed = (memory.budget.sequence_bytes + memory.budget.block_bytes) * 5 // 4
    return format_size(-(-needed // _STEP) * _STEP)


def _rounded(tokens: int) -> int:
    return tokens // 256 * 256 if tokens >= 512 else tokens


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"
