"""What every node of Kubernetes has: labels that the cloud sets on it, and folders that are its system's own."""

import posixpath

INSTANCE_TYPE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
ZONE_LABEL = "topology.kubernetes.io/zone"

# Labels under these domains are set by Kubernetes and the cloud; a node group can't be given them.
_RESERVED_DOMAINS = ("kubernetes.io", "k8s.io", "eks.amazonaws.com")

SYSTEM_FOLDERS = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys", "/usr"),
    *("/var/lib/kubelet", "/var/lib/containerd", "/var/run", "/var/log"),
)


def is_system_folder(path: str) -> bool:
    """Whether a folder belongs to the node's system, or holds one that does.

    >>> is_system_folder("/dev/shm"), is_system_folder("/var/lib"), is_system_folder("/var/lib/diptych")
    (True, True, False)
    """
    folder = posixpath.normpath(f"/{path.lstrip('/')}").rstrip("/")
    inside = (folder == own or folder.startswith(f"{own}/") for own in SYSTEM_FOLDERS)
    around = (own.startswith(f"{folder}/") for own in SYSTEM_FOLDERS)
    return any(inside) or any(around)


def is_reserved_label(key: str) -> bool:
    """Whether Kubernetes or the cloud sets a label of this key itself.

    >>> is_reserved_label("node.kubernetes.io/instance-type"), is_reserved_label("role")
    (True, False)
    """
    domain = key.rpartition("/")[0]
    return any(domain == own or domain.endswith(f".{own}") for own in _RESERVED_DOMAINS)
