import pytest

from diptych.spec import load
from diptych.spec.overrides import from_environment, from_options


def test_a_set_option_names_a_field_by_its_path_and_gives_yaml() -> None:
    found, problems = from_options(
        ["prefill.num_replicas=2", "engine_kwargs={a: [1, x]}", "model.source=a=b", "name="]
    )
    assert problems == []
    assert [(o.path, o.value, o.origin.label) for o in found] == [
        (("prefill", "num_replicas"), 2, "--set"),
        (("engine_kwargs",), {"a": [1, "x"]}, "--set"),
        (("model", "source"), "a=b", "--set"),
        (("name",), None, "--set"),
    ]


@pytest.mark.parametrize("option", ["topology", "=split", "a..b=1", ".a=1"])
def test_a_set_option_without_field_or_value_says_how_to_write_it(option: str) -> None:
    found, [problem] = from_options([option])
    assert found == []
    assert str(problem).startswith("--set: ")
    assert "write --set a.b=value" in str(problem)


def test_a_variable_names_a_field_with_two_underscores_for_each_dot() -> None:
    environ = {"DIPTYCH_ENGINE_KWARGS__MAX_MODEL_LEN": "4096", "DIPTYCH_TOPOLOGY": "split", "HOME": "/"}
    found, problems = from_environment(environ)
    assert problems == []
    assert [(o.path, o.value, o.origin.label) for o in found] == [
        (("engine_kwargs", "max_model_len"), 4096, "environment DIPTYCH_ENGINE_KWARGS__MAX_MODEL_LEN"),
        (("topology",), "split", "environment DIPTYCH_TOPOLOGY"),
    ]


def test_diptychs_other_variables_and_empty_ones_are_left_alone() -> None:
    reserved = ("STATE_DIR", "SERVICE", "PHASE", "TORCH_INDEX", "TEST_ANYTHING")
    environ = {f"DIPTYCH_{name}": "x" for name in reserved} | {
        "DIPTYCH_TOPOLOGY": " ",
        "diptych_topology": "x",
    }
    assert from_environment(environ) == ([], [])


def test_a_variable_reaches_fields_at_any_depth() -> None:
    environ = {
        "DIPTYCH_KV_TRANSFER__PORTS__DECODE": "30000",
        "DIPTYCH_NODES__SELECTOR": "{example.com/pool: gpu}",
        "DIPTYCH_PREFILL__AUTOSCALING_CONFIG__MAX_REPLICAS": "4",
        "DIPTYCH_PREFILL__NODES__COUNT": "3",
    }
    found, problems = from_environment(environ)
    assert problems == []
    assert [(o.path, o.value) for o in found] == [
        (("kv_transfer", "ports", "decode"), 30000),
        (("nodes", "selector"), {"example.com/pool": "gpu"}),
        (("prefill", "autoscaling_config", "max_replicas"), 4),
        (("prefill", "nodes", "count"), 3),
    ]
    document = load(None, environ=environ)
    assert document.prefill.nodes.count == 3
    assert document.kv_transfer.ports.decode == 30000
    assert document.nodes.selector == {"example.com/pool": "gpu"}


@pytest.mark.parametrize(
    ("variable", "reason"),
    [
        ("NAME", "a stray variable must not name another service"),
        ("ON", "no option may change the place"),
        ("VERSION", "it says how the document is to be read"),
        ("KUBERNETES__CONTEXT", "a stray variable must not change the place"),
        ("KUBERNETES__NAMESPACE", "a stray variable must not change the place"),
        ("EKS", "a stray variable must not spend money elsewhere"),
        ("EKS__REGION", "a stray variable must not spend money elsewhere"),
        ("EKS__SYSTEM_NODES__COUNT", "a stray variable must not spend money elsewhere"),
        ("NODES__ZONE", "a stray variable must not spend money elsewhere"),
        ("DECODE__NODES__CAPACITY_RESERVATION", "a stray variable must not spend money elsewhere"),
    ],
)
def test_name_account_and_place_never_come_from_the_environment(variable: str, reason: str) -> None:
    found, [problem] = from_environment({f"DIPTYCH_{variable}": "x"})
    assert found == []
    assert problem.where == f"environment DIPTYCH_{variable}"
    assert problem.field == variable.lower().replace("__", ".")
    assert problem.what == f"it can't be set here: {reason}"
    assert problem.do == "set it in the document, where it can be reviewed"


@pytest.mark.parametrize(
    ("variable", "inside"),
    [("KUBERNETES", "kubernetes.context"), ("NODES", "nodes.zone"), ("PREFILL", "prefill.nodes.zone")],
)
def test_a_section_that_holds_such_a_field_does_not_come_from_the_environment_as_a_whole(
    variable: str, inside: str
) -> None:
    found, [problem] = from_environment({f"DIPTYCH_{variable}": "{}"})
    assert found == []
    assert problem.what.startswith(f"it can't be set here as a whole, for {inside} is in it: a stray")
    assert problem.do == "set its other fields one by one"


@pytest.mark.parametrize(
    "option",
    ["name=x", "eks.region=eu-west-1", "eks={zone: auto}", "kubernetes.context=c", "nodes.zone=us-east-2a"],
)
def test_an_option_may_set_what_a_variable_may_not(option: str) -> None:
    assert from_options([option])[1] == []
    load(None, [option], {})


@pytest.mark.parametrize("option", ["on=eks", "on=local", "version=1"])
def test_no_option_changes_the_place_or_the_version(option: str) -> None:
    found, [problem] = from_options([option])
    assert found == []
    assert "set it in the document" in problem.do


@pytest.mark.parametrize("variable", ["DIPTYCH_", "DIPTYCH___A", "DIPTYCH_A__"])
def test_a_variable_that_names_no_field_is_an_error(variable: str) -> None:
    assert "it names no field" in str(from_environment({variable: "1"})[1][0])


def test_a_value_that_is_not_yaml_is_named_by_its_field() -> None:
    _, [problem] = from_options(["engine_kwargs=[1,"])
    assert str(problem).startswith("--set: engine_kwargs: it is not valid YAML at column")
