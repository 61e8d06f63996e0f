"""A program, not a module: reads a Serve configuration (YAML), prints what Ray's schema classes refuse in it (JSON).

It runs alone in a process of its own, with the Ray of the environment, and imports nothing of Diptych.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import yaml

_OURS = ("access", "orchestrator", "transport")
"""Arguments of `build_app` that Ray's builder does not have."""


def refusals(config: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Each field that a schema class refuses, and why."""
    from pydantic import ValidationError
    from ray.llm._internal.serve.serving_patterns.prefill_decode.builder import PDServingArgs
    from ray.serve.llm import LLMConfig
    from ray.serve.schema import ServeDeploySchema

    checks = [(ServeDeploySchema, config, "")]
    for application in config["applications"]:
        args = {name: value for name, value in application["args"].items() if name not in _OURS}
        if "llm_config" in args:
            checks.append((LLMConfig, args["llm_config"], "llm_config"))
        else:
            checks.append((PDServingArgs, args, ""))
    for schema, value, where in checks:
        try:
            schema.model_validate(value)
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_input=False):
                path = ".".join(str(step) for step in (where, *detail["loc"]) if step != "")
                yield {"where": path, "what": str(detail["msg"])}
        except (TypeError, ValueError) as error:
            yield {"where": where, "what": str(error)}


if __name__ == "__main__":
    print(json.dumps(list(refusals(yaml.safe_load(sys.stdin)))))
