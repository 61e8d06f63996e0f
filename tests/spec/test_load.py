import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from diptych.errors import DocumentError
from diptych.spec import Document, InvalidDocumentError, LoadedDocument, load, load_with_provenance

Loader = Callable[..., LoadedDocument]
Refusal = Callable[..., list[str]]


@pytest.fixture
def read(tmp_path: Path) -> Loader:
    def read(
        text: str, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> LoadedDocument:
        file = tmp_path / "diptych.yaml"
        file.write_text(text)
        return load_with_provenance(file, overrides, environ or {})

    return read


@pytest.fixture
def refused(read: Loader, tmp_path: Path) -> Refusal:
    """Load what must be refused; the message's lines, the file without its folder."""

    def refused(
        text: str, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> list[str]:
        with pytest.raises(InvalidDocumentError) as caught:
            read(text, overrides, environ)
        assert len(caught.value.problems) > 0
        return caught.value.message.replace(f"{tmp_path}/", "").splitlines()

    return refused


def test_no_document_is_the_default_document() -> None:
    assert load(None, environ={}) == Document()


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "---\n", "{}\n", "prefill:\nmodel:\nname:\n", "\ufeffversion: 1\n"]
)
def test_a_document_that_says_nothing_is_the_default_document(read: Loader, text: str) -> None:
    loaded = read(text)
    assert loaded.document == Document()
    assert {v for k, v in loaded.provenance.items() if k != "version"} == {"default"}


def test_a_plain_word_for_the_model_is_its_source(read: Loader) -> None:
    document = read("model: Qwen/Qwen3-0.6B\n").document
    assert document.model.source == "Qwen/Qwen3-0.6B"
    assert document.model.name == "qwen3-0.6b"


def test_memory_is_read_with_its_unit(read: Loader) -> None:
    document = read("prefill: {kv_cache_memory: 512MiB}\ndecode: {kv_cache_memory: 2147483648}\n").document
    assert document.prefill.kv_cache_memory == 512 * 1024**2
    assert document.decode.kv_cache_memory == 2 * 1024**3


def test_set_wins_over_the_environment_and_that_over_the_document(read: Loader) -> None:
    text = "prefill: {cores: 1, num_replicas: 1}\ndecode: {cores: 1}\n"
    environ = {"DIPTYCH_PREFILL__CORES": "2", "DIPTYCH_PREFILL__NUM_REPLICAS": "2"}
    loaded = read(text, ["prefill.cores=3", "prefill.cores=4"], environ)
    assert loaded.document.prefill.cores == 4
    assert loaded.document.prefill.num_replicas == 2
    assert loaded.document.decode.cores == 1


def test_every_value_says_where_it_came_from(read: Loader, tmp_path: Path) -> None:
    text = "name: mine\nmodel: Qwen/Qwen3-0.6B\nengine_kwargs:\n  dtype: float32\ndecode:\n  cores: 2\n"
    loaded = read(text, ["engine_kwargs.seed=1"], {"DIPTYCH_DECODE__NUM_REPLICAS": "2"})
    assert loaded.path == tmp_path / "diptych.yaml"
    assert {field: origin for field, origin in loaded.provenance.items() if origin != "default"} == {
        "name": "document line 1",
        "model.source": "document line 2",
        "engine_kwargs.dtype": "document line 4",
        "engine_kwargs.seed": "--set",
        "decode.num_replicas": "environment DIPTYCH_DECODE__NUM_REPLICAS",
        "decode.cores": "document line 6",
    }
    assert loaded.provenance["model.name"] == loaded.provenance["access.port"] == "default"


def test_an_override_of_a_section_replaces_it_whole(read: Loader) -> None:
    text = "model: {source: Qwen/Qwen3-0.6B, name: small, revision: abc}\n"
    loaded = read(text, ["model=Qwen/Qwen3-1.7B"])
    assert (loaded.document.model.name, loaded.document.model.revision) == ("qwen3-1.7b", None)
    assert loaded.provenance["model.source"] == "--set"
    assert loaded.provenance["model.name"] == "default"


def test_an_override_reaches_into_a_model_that_was_written_as_a_word(read: Loader) -> None:
    document = read("model: Qwen/Qwen3-0.6B\nprefill:\n", ["model.revision=abc", "prefill.cores=2"]).document
    assert (document.model.source, document.model.revision) == ("Qwen/Qwen3-0.6B", "abc")
    assert document.prefill.cores == 2


def test_an_empty_override_brings_the_default_back(read: Loader) -> None:
    loaded = read("topology: aggregated\n", ["topology="])
    assert loaded.document.topology == "split"
    assert loaded.provenance["topology"] == "default"


def test_an_empty_engine_argument_is_a_value(read: Loader) -> None:
    loaded = read("engine_kwargs: {seed: }\n", ["prefill.engine_kwargs.dtype=null"])
    assert loaded.document.engine_kwargs == {"seed": None}
    assert loaded.document.prefill.engine_kwargs == {"dtype": None}


def test_paths_are_relative_to_the_document_that_names_them(
    read: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    text = "model: {source: ./m/../My-Model, token_file: token}\n"
    document = read(text, ["access.api_key_file=key"]).document
    assert document.model.source == str(tmp_path / "My-Model")
    assert document.model.token_file == tmp_path / "token"
    assert document.access.api_key_file == elsewhere / "key"


def test_a_home_directory_is_filled_in(read: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert read("model: ~/m\n").document.model.source == "/home/someone/m"
    assert read("model: ~no-such-user/m\n").document.model.source == "~no-such-user/m"


def test_all_problems_come_at_once_in_the_order_of_their_lines(refused: Refusal) -> None:
    text = """\
on: kubernets
name: My_Service
prefill:
  num_replicas: "2"
  cores: 0
topolgy: split
decode: 3
decode: {}
"""
    environ = {"DIPTYCH_KV_TRANSFER__LEASE_S": "soon"}
    assert refused(text, ["access.port=70000"], environ) == [
        "diptych.yaml:1: on: is 'kubernets', and can be local, kubernetes or eks (did you mean kubernetes?)",
        "diptych.yaml:2: name: is 'My_Service', which can't name a service (use at most 40 small letters, "
        "digits and '-', a letter first and no '-' last)",
        "diptych.yaml:4: prefill.num_replicas: is '2', and must be a whole number (write it without quotes)",
        "diptych.yaml:5: prefill.cores: is 0, and must be at least 1 (give 1 or more)",
        "diptych.yaml:6: topolgy: there is no such field (did you mean topology?)",
        "diptych.yaml:7: decode: is 3, and must be a mapping (write `name: value` lines, indented below it)",
        "diptych.yaml:8: decode: it is given twice, first on line 7 (keep one of the two)",
        "environment DIPTYCH_KV_TRANSFER__LEASE_S: kv_transfer.lease_s: is 'soon', and must be a whole "
        "number (write digits only)",
        "--set: access.port: is 70000, and must be at most 65535 (give 65535 or less)",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("prefil: {}", "prefil: there is no such field (did you mean prefill?)"),
        ("KV-Transfer: {}", "KV-Transfer: there is no such field (did you mean kv_transfer?)"),
        (
            "decode: {numReplicas: 2}",
            "decode.numReplicas: there is no such field (did you mean num_replicas?)",
        ),
        ("port: 80", "port: there is no such field here (did you mean access.port?)"),
        ("cores: 2", "cores: there is no such field here (did you mean prefill.cores or decode.cores?)"),
        ("system_nodes: {}", "system_nodes: there is no such field here (did you mean eks.system_nodes?)"),
        (
            "instance_type: a",
            "instance_type: there is no such field here (did you mean nodes.instance_type, "
            "prefill.nodes.instance_type or decode.nodes.instance_type?)",
        ),
        (
            "kv_transfer: {ports: {prefil: 1}}",
            "kv_transfer.ports.prefil: there is no such field (did you mean prefill?)",
        ),
        ("staging: {x: 1}", "staging.x: there is no such field (the fields here are enabled, path)"),
    ],
)
def test_an_unknown_field_gets_the_nearest_right_name(refused: Refusal, text: str, line: str) -> None:
    assert refused(text) == [f"diptych.yaml:1: {line}"]


def test_an_engine_argument_outside_engine_kwargs_is_sent_there(refused: Refusal) -> None:
    for text in (
        "max_model_len: 1",
        "prefill: {max-model-len: 1}",
        "nodes: {tensor_parallel_size: 1}",
        "x_y_z: 1",
    ):
        assert "arguments of vLLM go into engine_kwargs" in refused(text)[0]


@pytest.mark.parametrize("where", ["engine_kwargs", "prefill.engine_kwargs", "decode.engine_kwargs"])
@pytest.mark.parametrize(
    ("argument", "instead"),
    [
        ("model", "set model.source"),
        ("revision", "set model.revision"),
        ("served_model_name", "set model.name"),
        ("served-model-name", "set model.name"),
        ("distributed_executor_backend", "remove it"),
        ("kv_transfer_config", "set kv_transfer"),
        ("max-model-len", "write max_model_len"),
    ],
)
def test_an_engine_argument_that_has_its_own_place_is_sent_there(
    where: str, argument: str, instead: str
) -> None:
    with pytest.raises(InvalidDocumentError) as caught:
        load(None, [f"{where}.{argument}=x"], {})
    [problem] = caught.value.problems
    assert problem.field == f"{where}.{argument}"
    assert problem.do == instead


def test_settings_of_the_connector_that_have_a_field_are_sent_there(refused: Refusal) -> None:
    text = "kv_transfer:\n  kv_connector_extra_config:\n    backends: [UCX]\n    other: 1\n"
    [line] = refused(text)
    assert line.startswith(
        "diptych.yaml:3: kv_transfer.kv_connector_extra_config.backends: can't be set here"
    )
    assert "set kv_transfer.backend" in line


def test_a_key_is_never_taken_inline_and_never_printed(refused: Refusal) -> None:
    for lines in (
        refused("access:\n  api_key: sk-secret\n"),
        refused("", ["access.api_key=sk-secret"]),
        refused("", environ={"DIPTYCH_ACCESS__API_KEY": "sk-secret"}),
    ):
        assert "version control" in lines[0]
        assert "set access.api_key_file" in lines[0]
        assert "sk-secret" not in "".join(lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("topology: splitt", "is 'splitt', and can be split or aggregated (did you mean split?)"),
        ("topology: 7", "is 7, and can be split or aggregated (write one of them)"),
        ("kv_transfer: {backend: ucx}", "is 'ucx', and can be auto, UCX or LIBFABRIC (did you mean UCX?)"),
        ("kv_transfer: {lease_s: 1.5}", "is 1.5, and must be a whole number (write digits only)"),
        ("prefill: {num_replicas: true}", "is true, and must be a whole number"),
        ("prefill: {num_replicas: 513}", "is 513, and must be at most 512 (give 512 or less)"),
        ("prefill: {kv_cache_memory: 2G}", "is '2G': G could mean GiB or GB (write a number with KiB"),
        ("prefill: {kv_cache_memory: 2}", "is 2, less than 1 MiB"),
        ("prefill: {kv_cache_memory: [2]}", "is a list, and must be a whole number"),
        ("engine_kwargs: [a]", "is a list, and must be a mapping"),
        (
            "model: {source: a/b, revision: 1234567}",
            "model.revision: is 1234567, and must be text (put it in quotes)",
        ),
        (
            "model: {revision: main}",
            "belongs to a Hugging Face id, and model.source is 'embedded' (remove it)",
        ),
        ("model: embeded", "model.source: is 'embeded' (did you mean embedded?"),
        ("model: gs://b/m", "model.source: is 'gs://b/m': not `embedded`, no Hugging Face id"),
        ("model: 5", "model: is 5, and must be a mapping"),
        ("model: /", "model.name: has no default for the source '/' (set model.name)"),
        ("model: {name: a b}", "is 'a b', which can't name a model"),
        ("name: 5", "is 5, and must be text (put it in quotes)"),
        (f"name: {'x' * 41}", "at most 40 small letters"),
        ("access: {api_key_file: 5}", "is 5, and must be a path"),
        ("access: {api_key_file: ''}", "which names no file"),
        ('access: {api_key_file: "a\\0b"}', "which names no file"),
        ('model: "./a\\0b"', "no Hugging Face id (owner/name), path or bucket"),
        (f"topology: {'x' * 500}", "xxx...'"),
    ],
)
def test_a_wrong_value_is_explained_in_plain_words(refused: Refusal, text: str, words: str) -> None:
    [line] = refused(text)
    assert words in line
    assert "Input" not in line
    assert len(line) < 250


def test_a_manifest_is_told_from_a_document_with_one_word_on_what_to_do(refused: Refusal) -> None:
    for text, kind in {
        "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: a}\n": "a Kubernetes manifest",
        "applications: []\n": "a configuration of Ray Serve",
    }.items():
        assert refused(text) == [
            f"diptych.yaml:1: it is {kind}, and no document of Diptych "
            "(make a document out of it: diptych init NEW.yaml --from diptych.yaml)"
        ]


@pytest.mark.parametrize(
    ("version", "shown", "do"),
    [
        ("2", "2", "use a newer Diptych, or write version: 1 if the document is meant for this one"),
        ("0", "0", "write it anew as version: 1; docs/document.md has the fields"),
        ("'1'", "'1'", "write version: 1"),
        ("1.0", "1.0", "write version: 1"),
        ("true", "true", "write version: 1"),
        ("[1]", "a list", "write version: 1"),
    ],
)
def test_another_version_is_refused_and_nothing_else_is_said(
    refused: Refusal, version: str, shown: str, do: str
) -> None:
    assert refused(f"future_field: 1\nversion: {version}\n") == [
        f"diptych.yaml:2: version: is {shown}, and this version of Diptych reads version 1 ({do})"
    ]


@pytest.mark.parametrize(("text", "kind"), [("- a\n", "a list"), ("hello\n", "'hello'"), ("5\n", "5")])
def test_a_document_that_is_no_mapping_is_refused(refused: Refusal, text: str, kind: str) -> None:
    assert refused(text) == [
        f"diptych.yaml:1: the document is {kind}, and must be a mapping (write `name: value` lines)"
    ]


def test_a_syntax_error_shows_the_line(refused: Refusal) -> None:
    assert refused("name: x\n\ttopology: split\n") == [
        "diptych.yaml:2: it is not valid YAML at column 1: a tab indents this line (indent with spaces)",
        "    →topology: split",
        "    ^",
    ]


def test_an_override_below_a_plain_value_is_refused(refused: Refusal) -> None:
    assert refused("engine_kwargs: {dtype: float32}", ["engine_kwargs.dtype.x=1"]) == [
        "--set: engine_kwargs.dtype.x: can't be set: engine_kwargs.dtype is no mapping "
        "(set engine_kwargs.dtype as a whole)"
    ]


def test_an_unknown_variable_is_an_error_that_names_it(refused: Refusal) -> None:
    environ = {"DIPTYCH_PREFIL__CORES": "1"}
    assert refused("", environ=environ) == [
        "environment DIPTYCH_PREFIL__CORES: prefil: there is no such field (did you mean prefill?)"
    ]


def test_a_file_that_can_not_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"name: a\n# caf\xe9\n")
    (tmp_path / "large").write_bytes(b"#" * 300_000)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, words in {
        "missing": "there is no such file",
        ".": "it is a folder",
        "latin": "byte 0xe9 on line 2 is not UTF-8",
        "large": "it is larger than 256 KiB",
        "large/x": "it can't be read: Not a directory",
        "loop": "it can't be read: Too many levels of symbolic links",
    }.items():
        with pytest.raises(DocumentError) as caught:
            load(tmp_path / name, environ={})
        assert caught.value.message.startswith(f"{tmp_path / name}: {words}")
        assert caught.value.exit_code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_says_so(tmp_path: Path) -> None:
    file = tmp_path / "diptych.yaml"
    file.touch(mode=0o000)
    with pytest.raises(DocumentError, match="Permission denied"):
        load(file, environ={})


def test_a_pipe_can_be_the_document(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"name: piped\n")
    os.close(writing)
    assert load(Path(f"/dev/fd/{reading}"), environ={}).name == "piped"
    os.close(reading)
