"""What is found in a file, and what is said when that is nothing."""

import json
from typing import Any

import pytest
import yaml

from diptych.spec.convert import ConversionError, document_from, read
from spec.convert.manifest_values import MANIFEST, engine, group, pod, service, split, whole

PAIR = split(engine(), engine())


def refused(text: str, **options: Any) -> ConversionError:
    with pytest.raises(ConversionError) as caught:
        document_from(read(text, "x.yaml"), file="x.yaml", **options)
    return caught.value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.yaml has no application of Ray Serve."),
        ("hello\n", "x.yaml has no application of Ray Serve."),
        ("- a\n", "x.yaml has no application of Ray Serve."),
        ("applications: []\n", "x.yaml has no application of Ray Serve."),
        (
            "kind: Deployment\n---\nkind: RayCluster\n",
            "x.yaml has no application of Ray Serve: there is Deployment, RayCluster in it.",
        ),
        (
            "kind: RayService\nspec: {}\n",
            "x.yaml has no application of Ray Serve: there is RayService in it.",
        ),
        (
            "applications: [{import_path: my_app:main}]\n",
            "No application in x.yaml is made by Ray Serve LLM: their import_path is my_app:main.",
        ),
        (
            "kind: RayService\nspec: {serveConfigV2: {a: 1}}\n",
            "x.yaml: serveConfigV2 is a mapping, and must be text.",
        ),
        (
            "kind: RayService\nspec:\n  serveConfigV2: |\n    applications:\n      - a: b: c\n",
            "x.yaml: serveConfigV2, line 2: it is not valid YAML at column 9: a `:` can't stand here "
            "(check the indentation, or put the text in quotes)\n      - a: b: c\n            ^",
        ),
        (
            "a: 1\n\tb: 2\n",
            "x.yaml:2: it is not valid YAML at column 1: a tab indents this line (indent with spaces)\n"
            "    →b: 2\n    ^",
        ),
        (
            "a: \x00\n",
            "x.yaml:1: a character that is not allowed stands at column 4: U+0000 "
            "(remove it, and check that this is a text file)",
        ),
    ],
)
def test_a_file_without_anything_to_convert_says_what_it_is(text: str, message: str) -> None:
    assert refused(text).message == message
    assert refused(text).exit_code == 2


@pytest.mark.parametrize(
    "text",
    ["[1,2\n", "{a: 1\n", "{\n", "a: [1,\n", '{"applications": [\n', "%FOO\n", "a: '\n", "---\n--- {\n"],
)
def test_a_fault_at_the_end_of_a_file_is_told_like_any_other(text: str) -> None:
    assert refused(text).message.startswith("x.yaml:")


def test_placeholders_that_nobody_filled_in_are_listed_with_their_lines() -> None:
    text = MANIFEST.read_text().replace("namespace: inference", "namespace: ${NAMESPACE}")
    text = text.replace("model_source: Qwen/Qwen3.5-9B", "model_source: ${MODEL}")
    text = text.replace("dtype: bfloat16", "dtype: ${DTYPE} # or ${OTHER}")
    error = refused(text)
    assert error.message == (
        "x.yaml still has placeholders: ${NAMESPACE} (line 12), ${MODEL} (line 23), ${DTYPE} (line 26)."
    )
    assert "envsubst" in error.hint


def test_a_placeholder_that_breaks_the_yaml_is_named_as_such() -> None:
    assert refused("a: {b: ${C}}\n").message == "x.yaml still has placeholders: ${C} (line 1)."


def test_variables_of_a_shell_are_no_placeholders() -> None:
    serve = split(engine(runtime_env={"env_vars": {"PATH": "${PATH}:/opt"}}), engine())
    manifest = service(serve, group("gpu", pod(command=["sh", "-c", "echo ${HOME}"])))
    document_from(read("# ${COMMENT}\n" + yaml.safe_dump(manifest), "x.yaml"))


def test_a_chart_that_was_not_rendered_says_so() -> None:
    error = refused("replicas: {{ .Values.n }}\n")
    assert error.message.startswith("x.yaml:1: ")
    assert error.hint == "Render the Helm chart first: helm template."


def test_a_list_of_kubernetes_and_json_are_read() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [{"kind": "Secret"}, service(PAIR)]}
    values, remarks = document_from(read(json.dumps(listed), "x.json"))
    assert values["name"] == "llm"
    assert remarks[0].where == "Secret None"


def test_what_kubectl_adds_is_passed_over() -> None:
    manifest = service(PAIR, group("gpu", pod(resources={})))
    manifest["metadata"] |= {
        "uid": "1",
        "resourceVersion": "2",
        "creationTimestamp": "x",
        "managedFields": [{"a": 1}],
    }
    manifest["status"] = {"serviceStatus": "Running"}
    assert document_from([manifest])[1] == document_from([service(PAIR, group("gpu", pod()))])[1]


def test_of_several_applications_one_must_be_chosen_by_any_of_its_names() -> None:
    one = service(split(engine("m-one"), engine("m-one")))
    two = service(whole(engine("m-two"), name="app-two"))
    two["metadata"]["name"] = "llm-two"
    text = yaml.safe_dump_all([one, two])
    error = refused(text)
    assert error.message == "x.yaml has 2 applications that serve models."
    assert error.hint == "Say which with --app NAME: app / llm / m-one; app-two / llm-two / m-two."
    for name, chosen in {"app": "llm", "llm-two": "llm-two", "app-two": "llm-two", "m-one": "llm"}.items():
        values, remarks = document_from(read(text, "x.yaml"), app=name)
        assert values["name"] == chosen
        assert [each.why for each in remarks if each.where.startswith("application ")] == [
            "a document describes one application"
        ]
    assert refused(text, app="three").message == "x.yaml has none called 'three'."


def test_an_application_of_another_kind_is_left_out() -> None:
    serve = split(engine(), engine())
    serve["applications"].append({"name": "other", "import_path": "other:app"})
    _, remarks = document_from([serve])
    assert [each.where for each in remarks] == ["application other"]
