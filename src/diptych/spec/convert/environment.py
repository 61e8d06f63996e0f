"""Environment variables of a manifest: the token becomes a reference, the rest is remarked on, no value is shown."""

from collections.abc import Mapping

from diptych.spec.convert.parts import Part, Reason

TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")

_SET_BY_DIPTYCH: Reason = ("Diptych sets it itself", "")
_STAGED: Reason = ("Diptych stages the model on each node, and says where it lies", "")
_KNOWN: Mapping[str, Reason] = {
    "FI_PROVIDER": ("Diptych sets it where there is EFA", ""),
    "FI_EFA_FORK_SAFE": ("Diptych sets it where there is EFA", ""),
    "FI_EFA_USE_DEVICE_RDMA": ("unset it is automatic, and set it aborts on devices without RDMA", ""),
    "NIXL_BACKEND": ("vLLM ignores it; kv_transfer.backend says which one", ""),
    "VLLM_HOST_IP": ("Diptych sets it to the pod's address", ""),
    "VLLM_NIXL_SIDE_CHANNEL_HOST": _SET_BY_DIPTYCH,
    "VLLM_NIXL_SIDE_CHANNEL_PORT": (
        "one value for all replicas makes them collide",
        "set kv_transfer.ports if the defaults don't do",
    ),
    "VLLM_SSM_CONV_STATE_LAYOUT": ("Diptych sets it for the models that need it", ""),
    "NVIDIA_VISIBLE_DEVICES": ("Kubernetes' device plugin sets it", ""),
    "HF_HOME": _STAGED,
    "HF_HUB_CACHE": _STAGED,
    "TRANSFORMERS_CACHE": _STAGED,
}
_OTHER: Reason = (
    "a document holds no environment variables",
    "set it in the image (image.name) if the engine needs it",
)


def token_secret(container: Part) -> str | None:
    """The secret out of which a container's variables take the Hugging Face token, as NAME/KEY."""
    found = None
    for variable in container.parts("env", f"{container.where}env."):
        name = str(variable.take("name"))
        reference = variable.part("valueFrom").part("secretKeyRef")
        secret, key = reference.take("name"), reference.take("key")
        variable.take("value")
        variable.close()
        if name in TOKENS and secret and key:
            found = found or f"{secret}/{key}"
        else:
            variable.remark("", _reason(name))
    container.leave("envFrom", _OTHER)
    return found


def leave_variables(runtime_env: Part) -> None:
    """Leave the variables of a Ray runtime environment out."""
    variables = runtime_env.part("env_vars")
    for name in variables.values:
        variables.leave(name, _reason(name))
    packages: Reason = ("packages belong into the image", "list them in image.packages")
    runtime_env.leave_all({"pip": packages, "uv": packages, "conda": packages})
    runtime_env.close(
        ("the code and files of an application are not used", "put what the engine needs into the image")
    )


def _reason(name: str) -> Reason:
    if name in TOKENS:
        do = "keep it in a secret, and name that in model.token_secret (NAME/KEY)"
        return "a token in clear text is not copied", do
    return _KNOWN.get(name, _OTHER)
