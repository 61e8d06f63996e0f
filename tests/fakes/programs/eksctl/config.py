"""A ClusterConfig as eksctl loads it: strictly, by its own JSON schema where `../shared/schemas` holds it."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from diptych.catalog.instances import instance_type
from fakes.programs.flags import RefusedError

SCHEMA = Path(__file__).resolve().parents[5] / "shared/schemas/eksctl-clusterconfig.json"
VERSIONS = ("1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36")
Config = dict[str, Any]


def load(path: str) -> Config:
    """Raises RefusedError, in eksctl's words where we know them, for what it would not take."""
    start = f'loading config file "{path}": '
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise RefusedError(f"{start}open {path}: {(error.strerror or '').lower()}") from None
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RefusedError(
            f"{start}couldn't create node from file: error converting YAML to JSON: {error}"
        ) from None
    _check_schema(config, start)
    _check(config)
    return dict(config)


def _check_schema(config: Any, start: str) -> None:
    if not SCHEMA.is_file():
        return
    from jsonschema import Draft7Validator  # a third of a second, which other commands are spared

    errors = sorted(
        Draft7Validator(json.loads(SCHEMA.read_text())).iter_errors(config), key=lambda one: str(one.path)
    )
    if not errors:
        return
    error = errors[0]
    if error.validator == "additionalProperties":
        unknown = re.findall(r"'([^']+)'", error.message)[0]
        raise RefusedError(
            f'{start}error unmarshaling JSON: while decoding JSON: json: unknown field "{unknown}"'
        )
    where = "/".join(map(str, error.absolute_path))
    raise RefusedError(f"{start}error unmarshaling JSON: while decoding JSON: {where}: {error.message}")


def _check(config: Mapping[str, Any]) -> None:
    about = config.get("metadata", {})
    for key in ("name", "region"):
        if not about.get(key):
            raise RefusedError(f"metadata.{key} must be set")
    if not re.fullmatch(r"[a-zA-Z][-a-zA-Z0-9]*", about["name"]):
        raise RefusedError(
            f"validation for {about['name']} failed, name must satisfy regular expression pattern: "
            "[a-zA-Z][-a-zA-Z0-9]*"
        )
    version = about.get("version")
    if version is not None and version not in VERSIONS:
        older = tuple(map(int, version.split("."))) < tuple(map(int, VERSIONS[0].split(".")))
        what = f"invalid version, {version} is no longer supported" if older else f"invalid version {version}"
        raise RefusedError(f"{what}, supported values: {', '.join(VERSIONS)}")
    zones = config.get("availabilityZones")
    if zones is not None and len(zones) < 2:
        raise RefusedError(
            f"only {len(zones)} zone(s) specified {_go(zones)}, 2 are required (can be non-unique)"
        )
    if zones is None and "subnets" not in config.get("vpc", {}):
        raise RefusedError("the stand-in does not choose zones: availabilityZones or vpc.subnets must be set")
    names = [group["name"] for group in config.get("managedNodeGroups", ())]
    for index, group in enumerate(config.get("managedNodeGroups", ())):
        if names.count(group["name"]) > 1:
            raise RefusedError(f'managedNodeGroups[{index}].name "{group["name"]}" is not unique')
        _check_group(group, f"managedNodeGroups[{index}]")


def _check_group(group: Mapping[str, Any], where: str) -> None:
    type_name = group.get("instanceType") or (group.get("instanceTypes") or ["m5.large"])[0]
    if group.get("availabilityZones") and group.get("subnets"):
        raise RefusedError(f"only one of {where}.availabilityZones and {where}.subnets can be set")
    lowest, wanted, highest = (group.get(key) for key in ("minSize", "desiredCapacity", "maxSize"))
    if None not in (lowest, wanted) and lowest > wanted:  # type: ignore[operator]
        raise RefusedError(f"cannot use --nodes-min={lowest} and --nodes={wanted} at the same time")
    if None not in (highest, wanted) and wanted > highest:  # type: ignore[operator]
        raise RefusedError(f"cannot use --nodes-max={highest} and --nodes={wanted} at the same time")
    block = group.get("instanceMarketOptions", {}).get("marketType") == "capacity-block"
    if block and "capacityReservation" not in group:
        raise RefusedError(
            f"{where}.instanceMarketOptions.marketType can only be set with {where}.capacityReservation"
        )
    if not group.get("efaEnabled"):
        return
    if len(group.get("availabilityZones") or group.get("subnets") or [1]) > 1:
        raise RefusedError(
            f"{where}.efaEnabled nodegroups must have only one subnet or one availability zone"
        )
    kind = instance_type(type_name)
    if kind is not None and not kind.has_efa:
        raise RefusedError(f"instance type {type_name} does not support EFA")


def _go(values: Sequence[str]) -> str:
    return f"[{' '.join(values)}]"
