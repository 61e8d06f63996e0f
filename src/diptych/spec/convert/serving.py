"""What is served, wherever that is: model, arguments of vLLM, phases and KV transfer."""

from typing import Any

from diptych.spec.convert.application import Engines
from diptych.spec.convert.parts import Remark
from diptych.spec.convert.values import hoisted


def serving(engines: Engines, remarks: list[Remark]) -> dict[str, Any]:
    """The fields of a document for these engines."""
    shared, own = hoisted({phase: engine.engine_kwargs for phase, engine in engines.items()})
    decode = engines["decode"]
    values: dict[str, Any] = {
        "model": dict(decode.model),
        "topology": None if "prefill" in engines else "aggregated",
        "engine_kwargs": shared,
    }
    for phase, engine in engines.items():
        values[phase] = {**engine.settings, "engine_kwargs": own[phase]}
    if "prefill" in engines:
        ports = {phase: engine.port for phase, engine in engines.items()}
        values["kv_transfer"] = {**_kv_transfer(engines, remarks), "ports": ports}
    elif decode.kv_transfer:
        remarks.append(Remark("kv_transfer_config", "one engine does both phases, and transfers nothing"))
    return values


def _kv_transfer(engines: Engines, remarks: list[Remark]) -> dict[str, Any]:
    """The fields of both phases; where they differ, what the phase says that the field is about."""
    prefill, decode = engines["prefill"].kv_transfer, engines["decode"].kv_transfer
    values = {**decode, **prefill}
    if "kv_load_failure_policy" in decode:  # it is decode that loads
        values["kv_load_failure_policy"] = decode["kv_load_failure_policy"]
    for name in values:
        if prefill.get(name) != decode.get(name):
            why = f"the phases differ in {name}, and a document has one value for both"
            remarks.append(Remark("kv_transfer_config", why, f"check kv_transfer.{name}"))
    return values
