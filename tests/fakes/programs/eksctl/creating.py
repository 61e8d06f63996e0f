"""`eksctl create cluster|nodegroup|addon|podidentityassociation`, all with `--config-file`."""

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from diptych.catalog.instances import instance_type
from fakes.programs.api import Api
from fakes.programs.eksctl import plugins
from fakes.programs.eksctl.config import Config, load
from fakes.programs.eksctl.run import Run, kubeconfig_path
from fakes.programs.fake_aws import AwsRefusedError
from fakes.programs.flags import Flags, RefusedError

_BEFORE_NODES = {"vpc-cni", "kube-proxy", "eks-pod-identity-agent"}
_DEFAULT_ADDONS = ("metrics-server", "vpc-cni", "kube-proxy", "coredns")


def create_cluster(flags: Flags) -> None:
    """Control plane, add-ons, node groups, kubeconfig, device plugins; raises RefusedError."""
    config = load(flags.text("config-file"))
    name, region = config["metadata"]["name"], config["metadata"]["region"]
    if flags.on("dry-run"):
        Run(flags, region, silent=True)
        print(yaml.safe_dump(config))
        return
    run = Run(flags, region)
    groups = [] if flags.on("without-nodegroup") else config.get("managedNodeGroups", [])
    for group in groups:
        run.info(
            f'nodegroup "{group["name"]}" will use "" [{group.get("amiFamily", "AmazonLinux2023")}/{_version(config)}]'
        )
    run.info(f"using Kubernetes version {_version(config)}")
    run.info(f'creating EKS cluster "{name}" in "{region}" region with managed nodes')
    problems = _make_cluster(run, config)
    if not problems:
        _write_kubeconfig(run, config)
        if config.get("iam", {}).get("withOIDC"):
            run.aws.make_provider(name, config["metadata"].get("tags", {}))
        problems = _make_addons(run, config, before_nodes=True) or _make_identities(run, config)
    if not problems and groups:
        problems = _make_groups(run, config, groups)
    if problems:
        run.warn(
            f"{len(problems)} error(s) occurred and cluster hasn't been created properly, you may wish to check "
            "CloudFormation console"
        )
        run.info(f"to cleanup resources, run 'eksctl delete cluster --region={region} --name={name}'")
        for problem in problems:
            run.critical(problem)
        raise RefusedError(f'failed to create cluster "{name}"')
    run.done(f'all EKS cluster resources for "{name}" have been created')
    api = run.api(run.cluster(name))
    _finish_groups(run, api, config, groups)
    _make_addons(run, config, before_nodes=False)
    run.done(f'EKS cluster "{name}" in "{region}" region is ready')


def create_nodegroup(flags: Flags) -> None:
    """The groups of the config whose stacks aren't there; a dead stack counts as there. Raises RefusedError."""
    config = load(flags.text("config-file"))
    name = config["metadata"]["name"]
    run = Run(flags, config["metadata"]["region"])
    cluster = run.cluster(name)
    if run.aws.stack(f"eksctl-{name}-cluster") is None:
        run.warn(
            f'no eksctl-managed CloudFormation stacks found for "{name}", will attempt to create nodegroup(s) '
            "on non eksctl-managed cluster"
        )
        if not {"id", "subnets", "securityGroup"} <= set(config.get("vpc", {})):
            raise RefusedError(
                f'loading VPC spec for cluster "{name}": VPC configuration required for creating nodegroups on '
                "clusters not owned by eksctl: vpc.subnets, vpc.id, vpc.securityGroup"
            )
    groups = _without_existing(run, name, chosen(flags, config))
    _log_choice(run, groups)
    run.info(
        f'will create a CloudFormation stack for each of {len(groups)} managed nodegroups in cluster "{name}"'
    )
    problems = _make_groups(run, config, groups)
    if problems:
        run.info(
            f"{len(problems)} error(s) occurred and nodegroups haven't been created properly, you may wish to check "
            "CloudFormation console"
        )
        region = config["metadata"]["region"]
        run.info(
            f"to cleanup resources, run 'eksctl delete nodegroup --region={region} --cluster={name} --name=<name>' for "
            "each of the failed nodegroup"
        )
        for problem in problems:
            run.critical(problem)
        raise RefusedError(f'failed to create nodegroups for cluster "{name}"')
    _finish_groups(run, run.api(cluster), config, groups)


def create_addon(flags: Flags) -> None:
    """The config's add-ons that aren't there; raises RefusedError."""
    config = load(flags.text("config-file"))
    run = Run(flags, config["metadata"]["region"])
    run.cluster(config["metadata"]["name"])
    problems = _make_addons(run, config, before_nodes=True) + _make_addons(run, config, before_nodes=False)
    if problems:
        raise RefusedError(problems[0])


def create_identity(flags: Flags) -> None:
    """The config's pod identity associations; raises RefusedError."""
    config = load(flags.text("config-file"))
    run = Run(flags, config["metadata"]["region"])
    run.cluster(config["metadata"]["name"])
    if problems := _make_identities(run, config):
        raise RefusedError(problems[0])


def chosen(flags: Flags, config: Config) -> list[dict[str, Any]]:
    """The config's groups by `--include` and `--exclude`; raises RefusedError for a glob that fits none."""
    groups = list(config.get("managedNodeGroups", ()))
    for glob in flags.all("include"):
        if not any(fnmatch.fnmatch(group["name"], glob) for group in groups):
            raise RefusedError(f'no nodegroups match include glob filter specification: "{glob}"')
    included = flags.all("include") or ["*"]
    return [
        group
        for group in groups
        if any(fnmatch.fnmatch(group["name"], glob) for glob in included)
        and not any(fnmatch.fnmatch(group["name"], glob) for glob in flags.all("exclude"))
    ]


def _version(config: Config) -> str:
    return str(config["metadata"].get("version", "1.34"))


def _make_cluster(run: Run, config: Config) -> list[str]:
    stack = f"eksctl-{config['metadata']['name']}-cluster"
    run.info(f'building cluster stack "{stack}"')
    try:
        run.aws.start_stack("cluster", config, rollback=not run.flags.on("cfn-disable-rollback"))
    except AwsRefusedError as error:
        return [f'creating CloudFormation stack "{stack}": {error}']
    run.info(f'deploying stack "{stack}"')
    return run.wait_for_stacks([stack], "CREATE_COMPLETE")


def _make_groups(run: Run, config: Config, groups: Sequence[Mapping[str, Any]]) -> list[str]:
    names, problems = [], []
    for group in groups:
        stack = f"eksctl-{config['metadata']['name']}-nodegroup-{group['name']}"
        run.info(f'building managed nodegroup stack "{stack}"')
        try:
            names.append(
                run.aws.start_stack(
                    "nodegroup", config, group, rollback=not run.flags.on("cfn-disable-rollback")
                )
            )
        except AwsRefusedError as error:
            problems.append(f'creating CloudFormation stack "{stack}": {error}')
            continue
        run.info(f'deploying stack "{stack}"')
    return problems + run.wait_for_stacks(names, "CREATE_COMPLETE")


def _finish_groups(run: Run, api: Api, config: Config, groups: Sequence[Mapping[str, Any]]) -> None:
    """Device plugins for what was made in this run, then the nodes. Only then are there GPUs and EFA."""
    _install_plugins(run, api, groups)
    for group in groups:
        selector = f"alpha.eksctl.io%2Fnodegroup-name%3D{group['name']}"
        nodes = api.call("GET", f"/api/v1/nodes?labelSelector={selector}")["items"]
        run.info(f'nodegroup "{group["name"]}" has {len(nodes)} node(s)')
        for node in nodes:
            run.info(f'node "{node["metadata"]["name"]}" is ready')
    run.done(f'created 0 nodegroup(s) in cluster "{config["metadata"]["name"]}"')
    run.done(f'created {len(groups)} managed nodegroup(s) in cluster "{config["metadata"]["name"]}"')


def _install_plugins(run: Run, api: Api, groups: Sequence[Mapping[str, Any]]) -> None:
    wanted = []
    with_gpus = [group for group in groups if _has_gpu(group)]
    if with_gpus and run.flags.on("install-nvidia-plugin", True):
        run.info(
            "as you are using the EKS-Optimized Accelerated AMI with a GPU-enabled instance type, the Nvidia "
            "Kubernetes device plugin was automatically installed."
        )
        wanted.append(plugins.nvidia([taint for group in with_gpus for taint in group.get("taints", ())]))
    if any(group.get("efaEnabled") for group in groups):
        wanted.append(plugins.efa())
    for plugin in wanted:
        name = plugin["metadata"]["name"]
        api.apply(f"/apis/apps/v1/namespaces/kube-system/daemonsets/{name}", plugin)
        run.info(f'created "kube-system:DaemonSet.apps/{name}"')


def _has_gpu(group: Mapping[str, Any]) -> bool:
    kind = instance_type(group.get("instanceType") or group["instanceTypes"][0])
    return kind is not None and kind.gpu is not None


def _make_addons(run: Run, config: Config, *, before_nodes: bool) -> list[str]:
    cluster = config["metadata"]["name"]
    wanted = list(config.get("addons", ()))
    if not config.get("addonsConfig", {}).get("disableDefaultAddons"):
        named = {addon["name"] for addon in wanted}
        wanted += [{"name": name} for name in _DEFAULT_ADDONS if name not in named]
    for addon in wanted:
        if (addon["name"] in _BEFORE_NODES) != before_nodes:
            continue
        run.info(f"creating addon: {addon['name']}")
        asked = {
            "clusterName": cluster,
            "addonName": addon["name"],
            "tags": config["metadata"].get("tags", {}),
        }
        if "configurationValues" in addon:
            asked["configurationValues"] = addon["configurationValues"]
        try:
            run.aws.call("eks", "CreateAddon", asked)
        except AwsRefusedError as error:
            if error.code == "ResourceInUseException":
                run.info(
                    f"Addon {addon['name']} is already present in this cluster, as an EKS managed addon, "
                    "and won't be re-created"
                )
                continue
            return [f'failed to create addon "{addon["name"]}": {error}']
    return []


def _make_identities(run: Run, config: Config) -> list[str]:
    cluster = config["metadata"]["name"]
    for about in config.get("iam", {}).get("podIdentityAssociations", ()):
        who = f"{about['namespace']}/{about['serviceAccountName']}"
        try:
            name = run.aws.start_stack("identity", config, about)
            if problems := run.wait_for_stacks([name], "CREATE_COMPLETE"):
                return problems
            stack = run.aws.stack(name) or {}
            outputs = {row["OutputKey"]: row["OutputValue"] for row in stack["Outputs"]}
            asked = {"namespace": about["namespace"], "serviceAccount": about["serviceAccountName"]}
            role = f"arn:aws:iam::{run.arn.split(':')[4]}:role/{outputs['RoleArn']}"
            tags = config["metadata"].get("tags", {})
            run.aws.call(
                "eks",
                "CreatePodIdentityAssociation",
                {"clusterName": cluster, "roleArn": role, "tags": tags, **asked},
            )
        except AwsRefusedError as error:
            return [f"creating pod identity association for service account {who}: {error}"]
        run.info(f"created pod identity association for service account {who}")
    return []


def _without_existing(run: Run, cluster: str, groups: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Only what is deleted, or could not be, does not count: a rolled-back stack does."""
    there = []
    for group in groups:
        stack = run.aws.stack(f"eksctl-{cluster}-nodegroup-{group['name']}")
        if stack is not None and stack["StackStatus"] not in {"DELETE_COMPLETE", "DELETE_FAILED"}:
            there.append(group["name"])
    if there:
        run.info(f"{len(there)} existing nodegroup(s) ({','.join(there)}) will be excluded")
    return [group for group in groups if group["name"] not in there]


def _log_choice(run: Run, groups: Sequence[Mapping[str, Any]]) -> None:
    if groups:
        names = ", ".join(group["name"] for group in groups)
        run.info(f"{len(groups)} nodegroup(s) ({names}) were included (based on the include/exclude rules)")


def _write_kubeconfig(run: Run, config: Config) -> None:
    if not run.flags.on("write-kubeconfig", True):
        return
    cluster = run.cluster(config["metadata"]["name"])
    region, name = config["metadata"]["region"], cluster["name"]
    context = f"{run.arn.rpartition('/')[2]}@{name}.{region}.eksctl.io"
    command = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "aws",
        "args": ["eks", "get-token", "--output", "json", "--cluster-name", name, "--region", region],
    }
    entry = {
        "server": cluster["endpoint"],
        "certificate-authority-data": cluster["certificateAuthority"]["data"],
    }
    written = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": f"{name}.{region}.eksctl.io", "cluster": entry}],
        "users": [{"name": context, "user": {"exec": command}}],
        "contexts": [
            {"name": context, "context": {"cluster": f"{name}.{region}.eksctl.io", "user": context}}
        ],
        "current-context": context,
    }
    path = Path(kubeconfig_path(run.flags))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(written))
    run.done(f'saved kubeconfig as "{path}"')
