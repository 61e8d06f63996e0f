"""`eksctl delete nodegroup|cluster|podidentityassociation`, `drain nodegroup` and `scale nodegroup`."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from fakes.programs.api import Api, ApiError
from fakes.programs.eksctl.config import load
from fakes.programs.eksctl.creating import chosen
from fakes.programs.eksctl.run import Run
from fakes.programs.fake_aws import AwsRefusedError
from fakes.programs.flags import Flags, RefusedError


def delete_nodegroup(flags: Flags) -> None:
    """With a config file only a plan, unless `--approve`. Drains first; does not wait, unless told."""
    run, cluster, names = _named_groups(flags)
    plan = "config-file" in flags.values and not flags.on("approve")
    about = run.cluster(cluster)
    _say(run, plan, f'drain {len(names)} nodegroup(s) in cluster "{cluster}"')
    if flags.on("drain", True) and not plan:
        _drain(run, run.api(about), names)
    _say(run, plan, f'delete {len(names)} nodegroups from cluster "{cluster}"')
    if plan:
        if names:
            run.warn("no changes were applied, run again with '--approve' to apply the changes")
        return
    stacks = [stack for name in names if (stack := _delete_group(run, cluster, name))]
    if flags.on("wait") and (problems := run.wait_for_stacks(stacks, "DELETE_COMPLETE")):
        run.info(f"{len(problems)} error(s) occurred while deleting nodegroup(s)")
        raise RefusedError("failed to delete nodegroup(s)")
    run.done(f'deleted {len(names)} nodegroup(s) from cluster "{cluster}"')


def drain_nodegroup(flags: Flags) -> None:
    """Cordon and evict; or uncordon. Raises RefusedError."""
    run, cluster, names = _named_groups(flags)
    api = run.api(run.cluster(cluster))
    if flags.on("undo"):
        for node in _nodes(api, names):
            _cordon(api, node, False)
        return
    _drain(run, api, names)


def scale_nodegroup(flags: Flags) -> None:
    """Changes the group's size, without draining. Raises RefusedError."""
    if flags.text("config-file"):
        raise RefusedError("the stand-in's scale nodegroup takes --cluster, --name and --nodes")
    run = Run(flags, flags.text("region"))
    name, cluster = flags.text("name"), flags.text("cluster")
    scaling = {
        key: int(flags.text(flag))
        for key, flag in (("desiredSize", "nodes"), ("minSize", "nodes-min"), ("maxSize", "nodes-max"))
        if flag in flags.values
    }
    run.info(f'scaling nodegroup "{name}" in cluster {cluster}')
    asked = {"clusterName": cluster, "nodegroupName": name, "scalingConfig": scaling}
    try:
        run.aws.call("eks", "UpdateNodegroupConfig", asked)
        while flags.on("wait") and _group(run, cluster, name)["status"] == "UPDATING":
            run.aws.sleep(10)
    except AwsRefusedError as error:
        raise RefusedError(f'failed to scale nodegroup for cluster "{cluster}", error: {error}') from None
    run.info(f'initiated scaling of nodegroup "{name}"')


def delete_cluster(flags: Flags) -> None:
    """The node groups, waited for; then the cluster, not waited for unless told. Raises RefusedError."""
    config = load(flags.text("config-file")) if flags.text("config-file") else {"metadata": {}}
    name = config["metadata"].get("name") or flags.text("name")
    if not name:
        raise RefusedError("--name must be set")
    run = Run(flags, config["metadata"].get("region") or flags.text("region"))
    run.info(f'deleting EKS cluster "{name}"')
    stack = f"eksctl-{name}-cluster"
    there = _cluster_or_none(run, name)
    if there is None and run.aws.stack(stack) is None:
        run.cluster(name)  # refuses in words
    if there is not None and there["status"] == "ACTIVE":
        _delete_load_balancers(run, run.api(there))
        groups = run.aws.call("eks", "ListNodegroups", {"clusterName": name})["nodegroups"]
        _delete_groups(run, name, groups)
    _delete_identities(run, name)
    run.aws.remove_provider(name)
    run.info(f'will delete stack "{stack}"')
    _delete_cluster(run, name, stack)
    run.done("all cluster resources were deleted")


def delete_identity(flags: Flags) -> None:
    """One association and its role's stack; raises RefusedError."""
    run = Run(flags, flags.text("region"))
    cluster = flags.text("cluster")
    asked = {"namespace": flags.text("namespace"), "serviceAccount": flags.text("service-account-name")}
    found = run.aws.call("eks", "ListPodIdentityAssociations", {"clusterName": cluster, **asked})[
        "associations"
    ]
    if not found:
        raise RefusedError("pod identity association not found")
    asked = {"clusterName": cluster, "associationId": found[0]["associationId"]}
    run.aws.call("eks", "DeletePodIdentityAssociation", asked)
    _delete_identities(run, cluster, f"{flags.text('namespace')}-{flags.text('service-account-name')}")


def _named_groups(flags: Flags) -> tuple[Run, str, list[str]]:
    if flags.text("config-file"):
        config = load(flags.text("config-file"))
        run = Run(flags, config["metadata"]["region"])
        names = [group["name"] for group in chosen(flags, config)]
        run.info(
            f"{len(names)} nodegroup(s) ({', '.join(names)}) were included (based on the include/exclude rules)"
        )
        return run, config["metadata"]["name"], names
    if not flags.text("cluster") or not flags.text("name"):
        raise RefusedError("--cluster and --name must be set")
    return Run(flags, flags.text("region")), flags.text("cluster"), [flags.text("name")]


def _say(run: Run, plan: bool, what: str) -> None:
    run.info(f"(plan) would {what}" if plan else f"will {what}")


def _group(run: Run, cluster: str, name: str) -> dict[str, Any]:
    asked = {"clusterName": cluster, "nodegroupName": name}
    return dict(run.aws.call("eks", "DescribeNodegroup", asked)["nodegroup"])


def _delete_group(run: Run, cluster: str, name: str) -> str | None:
    """Begins it; the stack to wait for. Raises RefusedError where there is none of that name."""
    stack = f"eksctl-{cluster}-nodegroup-{name}"
    try:
        if run.aws.stack(stack) is not None:
            run.info(f'will delete stack "{stack}"')
            run.aws.call("cloudformation", "DeleteStack", {"StackName": stack})
            return stack
        run.aws.call("eks", "DeleteNodegroup", {"clusterName": cluster, "nodegroupName": name})
    except AwsRefusedError as error:
        raise RefusedError(f'failed to delete nodegroup "{name}": {error}') from None
    return None


def _delete_groups(run: Run, cluster: str, names: Sequence[str]) -> None:
    stacks = [stack for name in names if (stack := _delete_group(run, cluster, name))]
    problems = run.wait_for_stacks(stacks, "DELETE_COMPLETE")
    while not problems and run.aws.call("eks", "ListNodegroups", {"clusterName": cluster})["nodegroups"]:
        run.aws.sleep(10)
    if problems:
        run.info(f"{len(problems)} error(s) occurred while deleting cluster with nodegroup(s)")
        for problem in problems:
            run.critical(problem)
        raise RefusedError("failed to delete cluster with nodegroup(s)")


def _delete_cluster(run: Run, name: str, stack: str) -> None:
    if run.aws.stack(stack) is None:
        run.aws.call("eks", "DeleteCluster", {"name": name})
        return
    try:
        run.aws.call("cloudformation", "DeleteStack", {"StackName": stack})
    except AwsRefusedError as error:
        raise RefusedError(f"failed to delete cluster: {error}") from None
    if run.flags.on("wait") and (problems := run.wait_for_stacks([stack], "DELETE_COMPLETE")):
        run.info(f"{len(problems)} error(s) occurred while deleting cluster with nodegroup(s)")
        for problem in problems:
            run.critical(problem)
        raise RefusedError("failed to delete cluster with nodegroup(s)")


def _cluster_or_none(run: Run, name: str) -> Any:
    try:
        return run.aws.call("eks", "DescribeCluster", {"name": name})["cluster"]
    except AwsRefusedError as error:
        if error.code == "ResourceNotFoundException":
            return None
        raise RefusedError(f"unable to describe cluster control plane: {error}") from None


def _delete_identities(run: Run, cluster: str, ending: str = "") -> None:
    start = f"eksctl-{cluster}-podidentityrole-{ending}"
    stacks = run.aws.call("cloudformation", "DescribeStacks", {})["Stacks"]
    names = [stack["StackName"] for stack in stacks if stack["StackName"].startswith(start)]
    for name in names:
        run.info(f'will delete stack "{name}"')
        run.aws.call("cloudformation", "DeleteStack", {"StackName": name})
    run.wait_for_stacks(names, "DELETE_COMPLETE")


def _delete_load_balancers(run: Run, api: Api) -> None:
    run.info("cleaning up AWS load balancers created by Kubernetes objects of Kind Service or Ingress")
    for service in api.call("GET", "/api/v1/services")["items"]:
        if service["spec"].get("type") == "LoadBalancer":
            about = service["metadata"]
            api.delete(f"/api/v1/namespaces/{about['namespace']}/services/{about['name']}")


def _nodes(api: Api, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        selector = f"alpha.eksctl.io%2Fnodegroup-name%3D{name}"
        for node in api.call("GET", f"/api/v1/nodes?labelSelector={selector}")["items"]:
            yield node["metadata"]["name"]


def _cordon(api: Api, node: str, on: bool) -> None:
    api.call(
        "PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": on}}, "application/merge-patch+json"
    )


def _drain(run: Run, api: Api, names: Sequence[str]) -> None:
    """Until no pod that a drain moves is on the nodes, or the time-out: a disruption budget can hold it."""
    nodes = list(_nodes(api, names))
    for node in nodes:
        _cordon(api, node, True)
        run.info(f'cordon node "{node}"')
    end = run.deadline
    while left := [pod for node in nodes for pod in _pods(api, node)]:
        for pod in left:
            _evict(run, api, pod)
        if time.monotonic() > end:
            limit = run.flags.text("timeout", "25m0s")
            raise RefusedError(f'timed out (after {limit}) waiting for nodegroup "{names[0]}" to be drained')
        run.aws.sleep(5)
    run.done(f"drained all nodes: [{' '.join(nodes)}]")


def _pods(api: Api, node: str) -> list[dict[str, Any]]:
    pods = api.call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")["items"]
    return [pod for pod in pods if not _of_daemon_set(pod)]


def _of_daemon_set(pod: dict[str, Any]) -> bool:
    return any(owner["kind"] == "DaemonSet" for owner in pod["metadata"].get("ownerReferences", ()))


def _evict(run: Run, api: Api, pod: dict[str, Any]) -> None:
    about = pod["metadata"]
    path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
    if run.flags.on("disable-eviction"):
        api.delete(path)
        return
    metadata = {"name": about["name"], "namespace": about["namespace"]}
    try:
        api.call(
            "POST", f"{path}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        )
    except ApiError as error:
        if error.status not in {404, 429}:
            raise
        if error.status == 429:
            who = f"{about['namespace']}/{about['name']}"
            run.warn(
                f'pod eviction error ("error evicting pod: {who}: {error}") on node {pod["spec"]["nodeName"]}'
            )
