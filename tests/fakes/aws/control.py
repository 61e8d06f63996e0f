"""What the stand-ins of eksctl ask the fake for, over HTTP: AWS's own operations without signing, and whole stacks.

`POST /fake/call {service, operation, parameters}`, `/fake/stack {kind, config, group?, rollback}`,
`/fake/provider {cluster, tags}` and `/fake/no-provider {cluster}`, each with `access_key`. Answers: `{"result": …}`
or `{"error": {"code", "message"}}`.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fakes.aws import wire

if TYPE_CHECKING:
    from fakes.aws.server import FakeAws


def answer(aws: "FakeAws", environ: Mapping[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body."""
    asked = json.loads(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) or b"{}")
    try:
        result = _results(aws, environ["PATH_INFO"].removeprefix("/fake/"), asked)
        body = {"result": result}
    except wire.AwsError as error:
        body = {"error": {"code": error.code, "message": error.message}}
    return 200, {"Content-Type": "application/json"}, json.dumps(body, default=str).encode()


def _results(aws: "FakeAws", path: str, asked: Mapping[str, Any]) -> Any:
    key = asked.get("access_key", "")
    if path == "call":
        call = wire.Call(
            asked["service"], asked["operation"], asked.get("region", aws.region), key, asked["parameters"]
        )
        found = aws.call(call)
        if found is None:
            raise wire.AwsError("InternalFailure", f"{call.action} is moto's; ask it there", 501)
        return found
    if path == "stack":
        config, rollback = asked["config"], asked.get("rollback", True)
        call = wire.Call("cloudformation", "CreateStack", aws.region, key, {"StackName": asked["kind"]})
        aws.calls.append(call)
        aws.faults.check(call)
        if asked["kind"] == "cluster":
            return aws.recipes.start_cluster(config, rollback=rollback).name
        if asked["kind"] == "nodegroup":
            return aws.recipes.start_nodegroup(config, asked["group"], rollback=rollback).name
        if asked["kind"] == "identity":
            return aws.recipes.start_identity(config, asked["group"]).name
    if path == "provider":
        aws.faults.check(wire.Call("iam", "CreateOpenIDConnectProvider", aws.region, key, {}))
        return aws.recipes.make_provider(asked["cluster"], asked["tags"])
    if path == "no-provider":
        aws.faults.check(wire.Call("iam", "DeleteOpenIDConnectProvider", aws.region, key, {}))
        return aws.recipes.remove_provider(asked["cluster"])
    raise wire.AwsError("InternalFailure", f"no {path}", 404)
