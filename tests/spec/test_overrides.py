import pytest

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


@pytest.mark.parametrize("variable", ["DIPTYCH_NAME", "DIPTYCH_ON", "DIPTYCH_VERSION"])
def test_neither_name_nor_place_nor_version_come_from_the_environment(variable: str) -> None:
    found, [problem] = from_environment({variable: "x"})
    assert found == []
    assert problem.where == f"environment {variable}"
    assert "it can't be set here" in problem.what


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
