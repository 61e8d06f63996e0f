"""What else is in a cluster: add-ons, access entries, pod identities; and the tags of all that EKS has."""

import uuid
from collections.abc import Mapping
from typing import Any

from fakes.aws.eks import Eks
from fakes.aws.wire import AwsError

Parameters = Mapping[str, Any]
_ADDON_S = 20.0


class Addons:
    """The operations on them."""

    def __init__(self, eks: Eks) -> None:
        self._eks = eks

    def create_addon(self, asked: Parameters) -> dict[str, Any]:
        cluster = self._eks.cluster(asked["clusterName"], active=True)
        name = asked["addonName"]
        if name in cluster.addons:
            raise AwsError("ResourceInUseException", "Addon already exists.", 409)
        known = {"vpc-cni", "coredns", "kube-proxy", "eks-node-monitoring-agent", "eks-pod-identity-agent"}
        if name not in known | {"aws-ebs-csi-driver", "metrics-server"}:
            raise AwsError(
                "ResourceNotFoundException",
                f"Addon {name} specified is not supported in {cluster.about['version']}",
                404,
            )
        about = {
            "addonName": name,
            "clusterName": cluster.name,
            "status": "CREATING",
            "health": {"issues": []},
            "addonVersion": asked.get("addonVersion", "v1.0.0-eksbuild.1"),
            "addonArn": self._eks.arn("addon", f"{cluster.name}/{name}/{uuid.uuid4()}"),
            "createdAt": self._eks.clock.now(),
            "modifiedAt": self._eks.clock.now(),
            "configurationValues": asked.get("configurationValues", ""),
            "tags": dict(asked.get("tags", {})),
        }
        cluster.addons[name] = about
        self._eks.clock.later(_ADDON_S, lambda: about.update(status="ACTIVE"))
        return {"addon": about}

    def describe_addon(self, asked: Parameters) -> dict[str, Any]:
        return {"addon": self._child("addons", asked["clusterName"], asked["addonName"], "No addon")}

    def list_addons(self, asked: Parameters) -> dict[str, Any]:
        names = list(self._eks.cluster(asked["clusterName"]).addons)
        page, token = self._eks.faults.page(names, asked.get("nextToken"), asked.get("maxResults"))
        return {"addons": page, **({"nextToken": token} if token else {})}

    def delete_addon(self, asked: Parameters) -> dict[str, Any]:
        about = self._child("addons", asked["clusterName"], asked["addonName"], "No addon")
        about["status"] = "DELETING"
        cluster = self._eks.cluster(asked["clusterName"])
        self._eks.clock.later(_ADDON_S, lambda: cluster.addons.pop(about["addonName"], None))
        return {"addon": about}

    def create_access_entry(self, asked: Parameters) -> dict[str, Any]:
        cluster = self._eks.cluster(asked["clusterName"], active=True)
        principal = asked["principalArn"]
        if principal in cluster.access_entries:
            message = "The specified access entry resource is already in use on this cluster."
            raise AwsError("ResourceInUseException", message, 409)
        about = {
            "clusterName": cluster.name,
            "principalArn": principal,
            "kubernetesGroups": list(asked.get("kubernetesGroups", [])),
            "accessEntryArn": self._eks.arn("access-entry", f"{cluster.name}/{uuid.uuid4()}"),
            "createdAt": self._eks.clock.now(),
            "modifiedAt": self._eks.clock.now(),
            "tags": dict(asked.get("tags", {})),
            "username": principal,
            "type": asked.get("type", "STANDARD"),
        }
        cluster.access_entries[principal] = about
        return {"accessEntry": about}

    def describe_access_entry(self, asked: Parameters) -> dict[str, Any]:
        what = "The specified principalArn could not be found."
        return {
            "accessEntry": self._child("access_entries", asked["clusterName"], asked["principalArn"], what)
        }

    def list_access_entries(self, asked: Parameters) -> dict[str, Any]:
        found = list(self._eks.cluster(asked["clusterName"]).access_entries)
        page, token = self._eks.faults.page(found, asked.get("nextToken"), asked.get("maxResults"))
        return {"accessEntries": page, **({"nextToken": token} if token else {})}

    def create_pod_identity_association(self, asked: Parameters) -> dict[str, Any]:
        cluster = self._eks.cluster(asked["clusterName"], active=True)
        for other in cluster.identities.values():
            if (other["namespace"], other["serviceAccount"]) == (asked["namespace"], asked["serviceAccount"]):
                message = f"Association already exists: {other['associationId']}"
                raise AwsError("ResourceInUseException", message, 409)
        identifier = f"a-{uuid.uuid4().hex[:17]}"
        about = {
            "clusterName": cluster.name,
            "namespace": asked["namespace"],
            "serviceAccount": asked["serviceAccount"],
            "roleArn": asked["roleArn"],
            "associationArn": self._eks.arn("podidentityassociation", f"{cluster.name}/{identifier}"),
            "associationId": identifier,
            "tags": dict(asked.get("tags", {})),
            "createdAt": self._eks.clock.now(),
            "modifiedAt": self._eks.clock.now(),
        }
        cluster.identities[identifier] = about
        return {"association": about}

    def describe_pod_identity_association(self, asked: Parameters) -> dict[str, Any]:
        found = self._child("identities", asked["clusterName"], asked["associationId"], "No association")
        return {"association": found}

    def list_pod_identity_associations(self, asked: Parameters) -> dict[str, Any]:
        found = [
            about
            for about in self._eks.cluster(asked["clusterName"]).identities.values()
            if about["namespace"] == asked.get("namespace", about["namespace"])
            and about["serviceAccount"] == asked.get("serviceAccount", about["serviceAccount"])
        ]
        page, token = self._eks.faults.page(found, asked.get("nextToken"), asked.get("maxResults"))
        return {"associations": page, **({"nextToken": token} if token else {})}

    def delete_pod_identity_association(self, asked: Parameters) -> dict[str, Any]:
        about = self._child("identities", asked["clusterName"], asked["associationId"], "No association")
        del self._eks.cluster(asked["clusterName"]).identities[about["associationId"]]
        return {"association": about}

    def list_tags_for_resource(self, asked: Parameters) -> dict[str, Any]:
        return {"tags": self._tags(asked["resourceArn"])}

    def tag_resource(self, asked: Parameters) -> dict[str, Any]:
        self._tags(asked["resourceArn"]).update(asked["tags"])
        return {}

    def untag_resource(self, asked: Parameters) -> dict[str, Any]:
        for key in asked["tagKeys"]:
            self._tags(asked["resourceArn"]).pop(key, None)
        return {}

    def _tags(self, arn: str) -> dict[str, str]:
        if arn not in self._eks.tagged():
            raise AwsError("NotFoundException", f"The resource {arn} was not found", 404)
        return self._eks.tagged()[arn]

    def _child(self, kind: str, cluster: str, name: str, what: str) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = getattr(self._eks.cluster(cluster), kind)
        if name not in found:
            message = what if what.endswith(".") else f"{what}: {name} found in cluster: {cluster}"
            raise AwsError("ResourceNotFoundException", message, 404)
        return found[name]
