"""Which cluster a kubeconfig means, and a clear error where it is an odd one."""

from pathlib import Path

import pytest

from diptych.errors import ClusterError
from diptych.kube.kubeconfig import Target, resolve


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "can't be read: it is no YAML"),
        ("made: 2024-13-45", "can't be read: month must be in 1..12"),
        ("- a", "is empty, or no kubeconfig"),
        ("current-context: lab\ncontexts: 5", "has no context 'lab'"),
        ("current-context: lab\ncontexts: {name: lab}", "has no context 'lab'"),
        ("current-context: lab\ncontexts: [lab]", "has no context 'lab'"),
    ],
)
def test_an_odd_kubeconfig_is_said(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    with pytest.raises(ClusterError) as caught:
        resolve(Target(file))
    assert f"The kubeconfig {file} {why}" in caught.value.message
