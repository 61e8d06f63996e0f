"""What depends on this machine: its variables, its files, the engines that are installed, its memory."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diptych.check import Facts, Finding, Installed, Machine, check_document, gather
from diptych.check.facts import installed_engines
from diptych.spec import load_with_provenance

Codes = Callable[..., set[str]]
Check = Callable[..., list[Finding]]

HYBRID = "model: Qwen/Qwen3.5-9B\n"


def test_the_default_document_has_nothing_wrong_here(check: Check) -> None:
    assert check("") == []


@pytest.mark.parametrize(
    "name",
    ["NIXL_BACKEND", "VLLM_NIXL_SIDE_CHANNEL_HOST", "NIXL_ETCD_ENDPOINTS", "VLLM_NIXL_ABORT_REQUEST_TIMEOUT"],
)
def test_a_variable_that_has_no_effect_is_told(check: Check, name: str) -> None:
    found = [each for each in check("", environ={name: "1"}) if each.code == "T404"]
    assert len(found) == 1
    assert name in found[0].what
    assert f"unset {name}" in found[0].do


def test_a_port_for_all_replicas_is_an_error(codes: Codes) -> None:
    assert "T405" in codes("", environ={"VLLM_NIXL_SIDE_CHANNEL_PORT": "5600"})
    assert "T405" not in codes("topology: aggregated\n", environ={"VLLM_NIXL_SIDE_CHANNEL_PORT": "5600"})


def test_variables_of_this_shell_say_nothing_about_a_cluster(codes: Codes) -> None:
    text = "on: eks\nmodel: Qwen/Qwen3-8B\n"
    assert not codes(text, environ={"NIXL_BACKEND": "UCX", "VLLM_NIXL_SIDE_CHANNEL_PORT": "1"}) & {
        "T404",
        "T405",
    }


def test_engines_that_are_not_installed_are_named(check: Check) -> None:
    found = next(each for each in check("", installed=Installed(None, None, None)) if each.code == "K525")
    assert "Ray and vLLM and NIXL" in found.what
    assert "K525" not in {each.code for each in check("on: eks\nmodel: Qwen/Qwen3-8B\n")}


@pytest.mark.parametrize("version", ["0.10.1", "1.0.0"])
def test_a_version_of_nixl_that_fails_is_refused(codes: Codes, version: str) -> None:
    installed = Installed("2.60.0", "0.29.0", version)
    assert "K526" in codes("", installed=installed)
    assert "K526" not in codes("topology: aggregated\n", installed=installed)


def test_the_engines_here_are_checked_as_those_of_an_image_are(codes: Codes) -> None:
    assert "K518" in codes("", installed=Installed("2.58.0", "0.29.0", "1.3.2"))
    assert "K519" in codes("", installed=Installed("2.55.0", "0.18.0", "1.3.2"))


def test_arguments_are_those_of_the_engine_here(codes: Codes) -> None:
    text = "engine_kwargs: {calculate_kv_scales: false}\n"
    assert "E601" in codes(text)
    assert "E601" not in codes(text, installed=Installed("2.58.0", "0.26.0", "1.3.1"))


def test_installed_engines_are_found_without_importing_them() -> None:
    here = installed_engines()
    assert here.ray is None or here.ray[0].isdigit()
    assert not here.cuda or here.vllm is not None


def keys(tmp_path: Path, mode: int) -> str:
    file = tmp_path / "keys"
    file.write_text("dk-key\n")
    file.chmod(mode)
    return f"access: {{api_key_file: {file}}}\n"


def codes_as_gathered(tmp_path: Path, text: str, **environ: str) -> set[str]:
    file = tmp_path / "diptych.yaml"
    file.write_text(text)
    loaded = load_with_provenance(file, environ={})
    facts = gather(loaded.document, offline=True, environ=environ)
    return {finding.code for finding in check_document(loaded, facts)}


def test_a_key_file_must_be_its_owners_alone(tmp_path: Path) -> None:
    assert "A711" in codes_as_gathered(tmp_path, keys(tmp_path, 0o644))
    assert "A711" not in codes_as_gathered(tmp_path, keys(tmp_path, stat.S_IRUSR))


def as_gathered(tmp_path: Path, reference: str) -> list[Finding]:
    file = tmp_path / "diptych.yaml"
    file.write_text(reference)
    loaded = load_with_provenance(file, environ={})
    facts = gather(loaded.document, offline=True, environ={})
    return [f for f in check_document(loaded, facts) if f.code in ("A711", "A721")]


@pytest.mark.parametrize(
    ("reference", "kind"),
    [
        ("access: {api_key_file: /tmp}\n", "a folder"),
        ("access: {api_key_file: /}\n", "a folder"),
        ("model: {source: a/b, token_file: /dev/null}\n", "a device"),
    ],
)
def test_what_is_no_file_gets_no_advice_about_its_mode(tmp_path: Path, reference: str, kind: str) -> None:
    [found] = as_gathered(tmp_path, reference)
    assert (found.code, found.do) == ("A721", "name the file itself")
    assert kind in found.what


def test_a_folder_that_is_private_is_still_no_key_file(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    [found] = as_gathered(tmp_path, f"access: {{api_key_file: {tmp_path}/private}}\n")
    assert found.code == "A721"


def test_nobody_is_told_to_change_the_mode_of_a_file_of_others(
    tmp_path: Path, check: Callable[..., list[Finding]]
) -> None:
    [found] = as_gathered(tmp_path, "model: {source: a/b, token_file: /etc/passwd}\n")
    assert found.code == "A711"
    assert "chmod 600 /etc" not in found.do
    theirs = Path("/srv/keys")
    text = f"access: {{api_key_file: {theirs}}}\n"
    mode = stat.S_IFREG | 0o644
    [found] = [f for f in check(text, files={theirs: mode}, foreign=frozenset({theirs})) if f.code == "A711"]
    assert "belongs to another user" in found.what
    assert "chmod 600 /srv" not in found.do
    [found] = [f for f in check(text, files={theirs: mode}) if f.code == "A711"]
    assert found.do == "run chmod 600 /srv/keys"


def test_what_is_referred_to_is_looked_for(tmp_path: Path) -> None:
    text = f"access: {{api_key_env: KEYS}}\nmodel: {{source: Qwen/Qwen3-0.6B, token_file: {tmp_path}/none}}\n"
    file = tmp_path / "diptych.yaml"
    file.write_text(text)
    loaded = load_with_provenance(file, environ={})
    found = check_document(loaded, gather(loaded.document, offline=True, environ={}))
    assert {f.field for f in found if f.code == "A710"} == {"access.api_key_env", "model.token_file"}
    assert "A710" not in codes_as_gathered(tmp_path, "access: {api_key_env: KEYS}\n", KEYS="dk-key")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("dk-one\n# dk-two admins\n\ndk-three priority=-1 admin\n", None),
        ("dk-one\ndk-two secret-word\n", "line 2"),
        ("admin\ndk-one priority\n", "lines 1, 2"),
    ],
)
def test_lines_of_keys_that_let_nobody_in_are_named_by_number(
    tmp_path: Path, text: str, named: str | None
) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    file.chmod(0o600)
    for reference, where, environ in (
        (f"api_key_file: {file}", str(file), {}),
        ("api_key_env: MY_KEYS", "MY_KEYS", {"MY_KEYS": text}),
    ):
        document = tmp_path / "diptych.yaml"
        document.write_text(f"access: {{{reference}}}\n")
        loaded = load_with_provenance(document, environ={})
        found = check_document(loaded, gather(loaded.document, offline=True, environ=environ))
        told = [each for each in found if each.code == "A732"]
        assert [each.what for each in told] == (
            [f"is {where}, which has more than keys on {named}"] if named else []
        )
        assert "secret-word" not in str(told)


def test_a_key_file_that_is_none_is_not_read(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "none", Path("/dev/zero")):
        assert "A732" not in codes_as_gathered(tmp_path, f"access: {{api_key_file: {file}}}\n")


def test_the_machine_is_looked_at_for_this_place_only(tmp_path: Path) -> None:
    looked: list[Any] = []

    def machine() -> Machine:
        looked.append(1)
        return Machine(2**30)

    def facts(text: str) -> Facts:
        file = tmp_path / "diptych.yaml"
        file.write_text(text)
        return gather(load_with_provenance(file, environ={}).document, offline=True, machine=machine)

    assert facts("").machine == Machine(2**30)
    assert facts("on: eks\nmodel: Qwen/Qwen3-8B\n").machine is None
    assert looked == [1]


def test_all_replicas_count_in_this_machines_memory(codes: Codes) -> None:
    assert "M315" not in codes("", machine=Machine(7 * 2**30))
    assert "M315" in codes("decode: {num_replicas: 3}\n", machine=Machine(7 * 2**30))


def test_gpus_here_are_sized_like_those_of_a_node(check: Check) -> None:
    text = "model: Qwen/Qwen3-8B\n"
    cuda = Installed("2.58.0", "0.26.0", "1.3.1", cuda=True)
    large, small = Machine(2**36, (80 * 2**30,) * 2), Machine(2**36, (24 * 2**30,))
    assert not {f.code for f in check(text, machine=large, installed=cuda)} & {"M305", "M306"}
    assert "M305" in {f.code for f in check(text, machine=small, installed=cuda)}  # both phases share it
