"""E6xx: arguments of vLLM, against the tables of the version that would run."""

from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from typing import Any

from diptych.catalog.arguments import (
    VERSIONS,
    Argument,
    added_in,
    config_arguments,
    engine_arguments,
    known_in,
    removed_in,
)
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import Subject, positive
from diptych.spec.problems import nearest, shown

_KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "json": "a mapping",
}

_WITHOUT_EFFECT = {
    "host": "Ray Serve is the server",
    "port": "Ray Serve is the server; access.port says where it answers",
    "uds": "Ray Serve is the server",
    "root_path": "Ray Serve is the server",
    "ssl_keyfile": "Ray Serve is the server; TLS ends before it (access)",
    "ssl_certfile": "Ray Serve is the server; TLS ends before it (access)",
    "ssl_ca_certs": "Ray Serve is the server; TLS ends before it (access)",
    "uvicorn_log_level": "Ray Serve is the server",
    "middleware": "Ray Serve is the server",
    "allowed_origins": "Ray Serve is the server",
    "data_parallel_rank": "Ray gives each replica its rank",
    "data_parallel_address": "Ray gives each replica its address",
    "data_parallel_backend": "Ray Serve starts the ranks",
    "nnodes": "Ray places the workers",
    "node_rank": "Ray places the workers",
    "master_addr": "Ray places the workers",
    "master_port": "Ray places the workers",
    "download_dir": "the model is staged (staging.path)",
}
"""Arguments that vLLM has and that do nothing here: why."""


_GONE = {
    "cuda_graph_sizes": "set cudagraph_capture_sizes",
    "device": "vLLM finds out what it computes on",
    "disable_async_output_proc": "",
    "disable_log_requests": "",
    "enable_prompt_adapter": "",
    "enable_reasoning": "set reasoning_parser",
    "guided_decoding_backend": "set structured_outputs_config",
    "max_context_len_to_capture": "set cudagraph_capture_sizes if the default does not do",
    "max_seq_len_to_capture": "set cudagraph_capture_sizes if the default does not do",
    "multi_step_stream_outputs": "",
    "ngram_prompt_lookup_max": "set speculative_config",
    "ngram_prompt_lookup_min": "set speculative_config",
    "num_lookahead_slots": "",
    "num_scheduler_steps": "async_scheduling took its place",
    "num_speculative_tokens": "set speculative_config",
    "override_pooler_config": "set pooler_config",
    "preemption_mode": "",
    "rope_scaling": "set hf_overrides",
    "rope_theta": "set hf_overrides",
    "scheduler_delay_factor": "",
    "speculative_model": "set speculative_config",
    "swap_space": "",
    "task": "set runner, and convert where the default does not do",
    "tokenizer_pool_size": "",
    "use_v2_block_manager": "",
    "worker_use_ray": "",
}
"""Arguments that older versions of vLLM had, and what takes their place, "" for nothing."""

_COUNTS = frozenset(
    {
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
        *("decode_context_parallel_size", "prefill_context_parallel_size"),
        *("block_size", "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory_bytes"),
    }
)

_CLOSE = 0.8
"""How alike the name of an argument must be to be proposed: there are so many that most words are like one."""

_CONNECTOR_SETTINGS = (
    "bidirectional_kv_xfer",
    "decoder_kv_blocks_ttl",
    "enable_cross_layers_blocks",
    "enforce_handshake_compat",
    "engine_ttl",
    "kv_recompute_threshold",
    "num_threads",
    "push_registration_timeout",
)
"""Fields of `kv_connector_extra_config` that vLLM 0.26 or 0.29 reads, beside those that have fields of their own."""


def newest() -> str:
    """The newest version of vLLM that has a table."""
    return VERSIONS[-1]


def table_of(subject: Subject) -> Mapping[str, Argument]:
    """The arguments of the engine that would run, of the newest known one where that has no table."""
    return engine_arguments(subject.engine.vllm or newest()) or engine_arguments(newest()) or {}


def _version_of_table(subject: Subject) -> str:
    """The version whose arguments `table_of` has; said where it is not the one that would run."""
    runs = subject.engine.vllm
    if runs is None or engine_arguments(runs) is not None:
        return runs or newest()
    return f"{newest()} (the arguments of {runs} are not known here)"


@rule("E601", "error", "An argument that vLLM does not have")
def arguments_exist(subject: Subject) -> Iterable[Complaint]:
    table, version = table_of(subject), _version_of_table(subject)
    for field, name, _ in _given(subject):
        if name not in table:
            yield Complaint(field, f"there is no such argument in vLLM {version}", _instead(name, table))


@rule("E602", "error", "An argument with a value that vLLM does not take")
def values_are_taken(subject: Subject) -> Iterable[Complaint]:
    table = table_of(subject)
    for field, name, value in _given(subject):
        argument = table.get(name)
        if argument is not None and not argument.accepts(value):
            yield Complaint(
                field, f"is {shown(value)}, and must be {_wanted(argument)}", _correct(argument, value)
            )


@rule("E603", "warning", "A version of vLLM whose arguments are not known")
def table_is_there(subject: Subject) -> Iterable[Complaint]:
    version = subject.engine.vllm
    if version is None or engine_arguments(version) is not None:
        return
    yield Complaint(
        subject.version_field("vllm"),
        f"the arguments of vLLM {version} ({subject.engine.source}) are not known here, and were checked against "
        f"those of {newest()}",
        f"use an engine with vLLM {' or '.join(VERSIONS)}",
    )


@rule("E604", "warning", "An argument that has no effect here")
def arguments_have_effect(subject: Subject) -> Iterable[Complaint]:
    for field, name, _ in _given(subject):
        if name in _WITHOUT_EFFECT and not (name == "download_dir" and subject.is_local):
            yield Complaint(field, f"has no effect: {_WITHOUT_EFFECT[name]}", "remove it")


@rule("E605", "error", "A step smaller than it must be")
def steps_hold_their_sequences(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        tokens, sequences = (positive(view.kwargs.get(n)) for n in ("max_num_batched_tokens", "max_num_seqs"))
        longest = view.max_model_len
        if tokens is None:
            continue
        field = view.path("max_num_batched_tokens")
        if sequences is not None and tokens < sequences:
            what = f"is {tokens}, below max_num_seqs ({sequences}): each sequence needs one token of a step"
            yield Complaint(field, what, f"write {sequences} or more, or lower max_num_seqs")
        elif view.kwargs.get("enable_chunked_prefill") is False and longest is not None and tokens < longest:
            what = f"is {tokens}, below max_model_len ({longest}), and without chunked prefill a prompt is one step"
            yield Complaint(field, what, "raise it, or remove enable_chunked_prefill")


@rule("E606", "error", "A field that a mapping of vLLM does not have")
def mappings_have_their_fields(subject: Subject) -> Iterable[Complaint]:
    version = subject.engine.vllm or newest()
    for field, name, value in _given(subject):
        known = config_arguments(version, name)
        if known is None or not isinstance(value, dict):
            continue
        for key in value:
            if key not in known:
                like = nearest(str(key), list(known))
                do = f"did you mean {like}?" if like else f"the fields are {', '.join(sorted(known))}"
                yield Complaint(f"{field}.{key}", f"{name} of vLLM {version} has no such field", do)


@rule("E608", "error", "A number that must be above 0")
def counts_are_positive(subject: Subject) -> Iterable[Complaint]:
    for field, name, value in _given(subject):
        if name in _COUNTS and isinstance(value, int) and not isinstance(value, bool) and value < 1:
            yield Complaint(field, f"is {value}, and must be above 0", "write 1 or more, or remove it")


@rule("E607", "warning", "A setting that NixlConnector does not know")
def connector_settings_are_known(subject: Subject) -> Iterable[Complaint]:
    for name in subject.document.kv_transfer.kv_connector_extra_config if subject.is_split else ():
        if name not in _CONNECTOR_SETTINGS:
            like = nearest(name, _CONNECTOR_SETTINGS)
            yield Complaint(
                f"kv_transfer.kv_connector_extra_config.{name}",
                "is no setting that NixlConnector reads: it has no effect",
                f"did you mean {like}?" if like else f"it reads {', '.join(_CONNECTOR_SETTINGS)}",
            )


def _given(subject: Subject) -> Iterable[tuple[str, str, Any]]:
    """Every argument that the document gives and an engine gets, with its field and value; shared ones once."""
    document = subject.document
    for name, value in document.engine_kwargs.items():
        if any(name not in view.section.engine_kwargs for view in subject.phases):
            yield f"engine_kwargs.{name}", name, value
    for view in subject.phases:
        for name, value in view.section.engine_kwargs.items():
            yield f"{view.name}.engine_kwargs.{name}", name, value


def _instead(name: str, table: Mapping[str, Argument]) -> str:
    if known_in(name):
        added, removed = added_in(name), removed_in(name)
        if removed is not None:
            return f"remove it: vLLM {removed} took it away"
        return f"remove it: vLLM has it from {added} on" if added else "remove it"
    if name in _GONE:
        return f"remove it: vLLM has it no longer{f'; {_GONE[name]}' if _GONE[name] else ''}"
    like = nearest(name, list(table))
    if like is not None and SequenceMatcher(None, name.lower().replace("-", "_"), like).ratio() < _CLOSE:
        like = None
    return (
        f"did you mean {like}?" if like else "remove it, or look it up in the documentation of that version"
    )


def _wanted(argument: Argument) -> str:
    if argument.choices:
        *others, last = (shown(choice) for choice in argument.choices)
        return f"{', '.join(others)} or {last}" if others else last
    words = [_KINDS[kind] for kind in argument.kinds if kind in _KINDS]
    return " or ".join(words)


def _correct(argument: Argument, value: Any) -> str:
    if isinstance(value, str) and not argument.choices:
        plain = value.strip().lower()
        if "bool" in argument.kinds and plain in ("true", "false", "yes", "no", "on", "off"):
            return f"write {'true' if plain in ('true', 'yes', 'on') else 'false'}, without quotes"
        if {"int", "float"} & set(argument.kinds) and plain.replace(".", "", 1).isdecimal():
            return "write it without quotes"
    like = nearest(value, [str(choice) for choice in argument.choices]) if isinstance(value, str) else None
    if like is not None:
        return f"did you mean {like}?"
    return "correct it, or remove it for vLLM's default"
