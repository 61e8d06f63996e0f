"""The way into a cluster: a kubeconfig of its own, and tokens without the AWS CLI."""

import base64
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from diptych.eks import kubeconfig
from diptych.eks.aws import AwsError, Session
from diptych.eks.token import main, token
from diptych.errors import AccountError, SetupError


class Described(Session):
    """A session in which EKS describes one cluster."""

    def __init__(self, profile: str | None = None, **about: object) -> None:
        self.region = "us-east-2"
        self._profile = profile
        self._about = {
            "status": "ACTIVE",
            "endpoint": "https://llm.eks",
            "certificateAuthority": {"data": "Q0E="},
        }
        self._about.update(about)

    @property
    def profile(self) -> str | None:
        return self._profile

    def call(self, service: str, operation: str, *, region: str | None = None, **arguments: object) -> object:
        assert (service, operation, arguments) == ("eks", "describe_cluster", {"name": "llm"})
        return {"cluster": self._about}


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_kubeconfig_is_its_owners_alone_and_holds_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    context = kubeconfig.write(Described(), "llm", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    config = yaml.safe_load(file.read_text())
    assert config["current-context"] == context == "llm.us-east-2"
    [cluster] = config["clusters"]
    assert cluster["cluster"] == {"server": "https://llm.eks", "certificate-authority-data": "Q0E="}
    assert "token" not in file.read_text().replace("diptych.eks.token", "")


def test_the_plugin_signs_in_with_the_profile_that_the_file_was_written_for(tmp_path: Path) -> None:
    def plugin(profile: str | None) -> dict[str, object]:
        found = kubeconfig.content(Described(profile), "llm")["users"][0]["user"]["exec"]
        assert isinstance(found, dict)
        return found

    assert plugin("dev")["env"] == [
        {"name": "AWS_PROFILE", "value": "dev"},
        {"name": "AWS_ACCESS_KEY_ID", "value": ""},
        {"name": "AWS_SECRET_ACCESS_KEY", "value": ""},
        {"name": "AWS_SESSION_TOKEN", "value": ""},
    ]
    assert plugin(None)["env"] is None
    assert plugin(None)["args"] == ["-m", "diptych.eks.token", "--cluster", "llm", "--region", "us-east-2"]


def test_a_cluster_that_has_no_address_yet_is_told() -> None:
    with pytest.raises(AccountError, match="is CREATING and has no address yet"):
        kubeconfig.content(Described(status="CREATING", endpoint=None), "llm")


def test_the_users_own_file_keeps_everything_that_is_not_ours(tmp_path: Path) -> None:
    file = tmp_path / ".kube" / "config"
    file.parent.mkdir()
    theirs = {"name": "lab", "cluster": {"server": "https://lab"}}
    old = {"name": "llm.us-east-2", "cluster": {"server": "https://old"}}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [theirs, old],
        "users": kubeconfig.content(Described(), "llm")["users"],
        "current-context": "lab",
        "extra": 1,
    }
    file.write_text(yaml.safe_dump(content))
    kubeconfig.add_to(file, kubeconfig.content(Described(), "llm"))
    found = yaml.safe_load(file.read_text())
    assert [each["name"] for each in found["clusters"]] == ["lab", "llm.us-east-2"]
    assert found["clusters"][1]["cluster"]["server"] == "https://llm.eks"
    assert (found["current-context"], found["extra"]) == ("lab", 1)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_was_added_goes_again_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "config"
    theirs = {
        "clusters": [{"name": "lab", "cluster": {"server": "https://lab"}}],
        "users": [{"name": "lab", "user": {}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "apiVersion": "v1",
        "kind": "Config",
    }
    file.write_text(yaml.safe_dump(theirs))
    kubeconfig.add_to(file, kubeconfig.content(Described(), "llm"))
    assert yaml.safe_load(file.read_text())["current-context"] == "llm.us-east-2"
    assert kubeconfig.remove_from(file, "llm.us-east-2")
    assert yaml.safe_load(file.read_text()) == {**theirs, "current-context": ""}
    assert not kubeconfig.remove_from(file, "llm.us-east-2")
    assert not kubeconfig.remove_from(tmp_path / "none", "llm.us-east-2")
    assert not (tmp_path / "none").exists()


def test_a_context_of_that_name_that_somebody_else_made_since_stays(tmp_path: Path) -> None:
    file = tmp_path / "config"
    config = kubeconfig.content(Described(), "llm")
    config["users"][0]["user"] = {"exec": {"command": "aws", "args": ["eks", "get-token"]}}
    file.write_text(yaml.safe_dump(config))
    assert not kubeconfig.remove_from(file, "llm.us-east-2")
    assert yaml.safe_load(file.read_text()) == config


@pytest.mark.parametrize("kind", ["cluster", "context", "user"])
def test_an_entry_of_that_name_that_is_somebody_elses_is_refused_and_stays(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "config"
    text = yaml.safe_dump({f"{kind}s": [{"name": "llm.us-east-2", kind: {"theirs": True}}]})
    file.write_text(text)
    why = f"has a {kind} llm.us-east-2 already, and Diptych did not make it"
    with pytest.raises(SetupError, match=why):
        kubeconfig.require_room(file, "llm.us-east-2")
    with pytest.raises(SetupError, match=why):
        kubeconfig.add_to(file, kubeconfig.content(Described(), "llm"))
    kubeconfig.require_room(file, "llm.us-west-2")
    assert file.read_text() == text and names_in(tmp_path) == ["config"]


ODD = """\
# mine
apiVersion: v1
clusters: []
contexts: null
extensions: &e
- {date: 2024-13-45, day: 2024-11-29, octal: 0123, exponent: "12e45", nine: '089', yes: on, huge: 1_000}
- !!binary aGk=
more: *e
users:
- name: lab
  user: {token: 007, password: "0x1f", on: true}
"""


def test_words_go_back_as_they_were_written_and_the_comments_to_a_file_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(ODD)
    (tmp_path / "config.new").write_text("mine")
    (tmp_path / "config.before-diptych-1").write_text("mine")
    backup = kubeconfig.add_to(file, kubeconfig.content(Described(), "llm"))
    assert backup == tmp_path / "config.before-diptych-2" and backup.read_text() == ODD
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    first, second = (yaml.load(text, yaml.BaseLoader) for text in (ODD, file.read_text()))
    for key in ("extensions", "more"):
        assert second[key] == first[key]
    assert second["users"][0] == first["users"][0]
    for word in (
        "date: 2024-13-45",
        "octal: 0123",
        'exponent: "12e45"',
        "nine: '089'",
        "token: 007",
        "yes: on",
    ):
        assert word in file.read_text()

    assert kubeconfig.add_to(file, kubeconfig.content(Described(), "llm")) is None
    assert kubeconfig.remove_from(file, "llm.us-east-2")
    assert names_in(tmp_path) == [
        *("config", "config.before-diptych-1", "config.before-diptych-2", "config.new")
    ]
    assert {(tmp_path / name).read_text() for name in ("config.new", "config.before-diptych-1")} == {"mine"}


@pytest.mark.parametrize(
    "user", ["text", "{exec: text}", "{exec: {args: 5}}", "{exec: {args: text}}", "[]", "null", "{exec: [1]}"]
)
def test_a_user_of_an_odd_shape_is_not_ours(tmp_path: Path, user: str) -> None:
    file = tmp_path / "config"
    file.write_text(f"users: [{{name: llm.us-east-2, user: {user}}}]\n")
    assert not kubeconfig.remove_from(file, "llm.us-east-2")
    with pytest.raises(SetupError, match="has a user"):
        kubeconfig.require_room(file, "llm.us-east-2")


def test_a_place_that_can_not_be_written_is_told_before_anything_is_made(tmp_path: Path) -> None:
    nowhere = Path("/proc/nowhere/config")  # not even root makes files there
    with pytest.raises(SetupError, match=r"/proc/nowhere/config could not be written, in /proc: ") as before:
        kubeconfig.require_room(nowhere, "llm.us-east-2")
    with pytest.raises(SetupError, match=r"/proc/nowhere/config cannot be written") as at_last:
        kubeconfig.add_to(nowhere, kubeconfig.content(Described(), "llm"))
    for each in (before, at_last):
        assert "KUBECONFIG" in each.value.hint and "DIPTYCH_STATE_DIR" not in each.value.hint
    kubeconfig.require_room(tmp_path / "a" / "b" / "config", "llm.us-east-2")
    assert names_in(tmp_path) == []


def test_a_link_to_a_kubeconfig_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "config"
    real.write_text("{}\n")
    link.symlink_to(real)
    kubeconfig.add_to(link, kubeconfig.content(Described(), "llm"))
    assert link.is_symlink() and "llm.us-east-2" in real.read_text()


def test_a_first_kubeconfig_is_made_where_kubectl_makes_it(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    several = {"KUBECONFIG": os.pathsep.join(["", str(first), str(second)])}
    file = kubeconfig.default_path(several)
    assert file == second
    first.write_text("")
    assert kubeconfig.default_path(several) == first
    assert kubeconfig.default_path({}) == Path("~/.kube/config").expanduser()
    kubeconfig.add_to(file, kubeconfig.content(Described(), "llm"))
    assert yaml.safe_load(file.read_text())["current-context"] == "llm.us-east-2"


@pytest.mark.parametrize("text", ["a: [\n", "? [a]\n: b\n", 'a: "\\UFFFFFFFF"\n', "[" * 5000])
def test_a_file_that_is_no_yaml_is_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(SetupError, match="can't be read as a kubeconfig"):
        kubeconfig.remove_from(file, "llm.us-east-2")
    assert file.read_text() == text


@pytest.mark.parametrize("text", ["- a\n", "users: me\n", "clusters: [a]\n"])
def test_a_file_that_is_no_kubeconfig_is_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(SetupError, match="is no kubeconfig"):
        kubeconfig.add_to(file, kubeconfig.content(Described(), "llm"))
    with pytest.raises(SetupError, match="is no kubeconfig"):
        kubeconfig.remove_from(file, "llm.us-east-2")
    assert file.read_text() == text


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def request_in(text: str) -> str:
    """The signed request that a token is."""
    assert text.startswith("k8s-aws-v1.")
    inside = text.removeprefix("k8s-aws-v1.")
    assert "=" not in inside
    return base64.urlsafe_b64decode(inside + "=" * (-len(inside) % 4)).decode()


@pytest.mark.usefixtures("credentials")
def test_a_token_is_a_request_that_is_signed_with_the_clusters_name() -> None:
    url = urlsplit(request_in(token(Session("us-east-2"), "llm")))
    asked = {name: value[0] for name, value in parse_qs(url.query).items()}
    assert url.netloc == "sts.us-east-2.amazonaws.com"
    assert asked["Action"] == "GetCallerIdentity"
    assert asked["X-Amz-Expires"] == "60"
    assert asked["X-Amz-SignedHeaders"] == "host;x-k8s-aws-id"
    other = urlsplit(request_in(token(Session("us-east-2"), "other")))
    assert parse_qs(other.query)["X-Amz-Signature"] != parse_qs(url.query)["X-Amz-Signature"]


@pytest.mark.usefixtures("credentials")
def test_a_session_that_made_a_token_makes_plain_requests_afterwards() -> None:
    session = Session("us-east-2")
    token(session, "llm")
    url = session.client("sts").generate_presigned_url("get_caller_identity")
    assert "x-k8s-aws-id" not in url


@pytest.mark.usefixtures("credentials")
def test_the_plugin_prints_what_kubernetes_expects() -> None:
    command = [sys.executable, "-m", "diptych.eks.token", "--cluster", "llm", "--region", "us-east-2"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(told.stdout)
    assert (found["kind"], found["apiVersion"]) == ("ExecCredential", "client.authentication.k8s.io/v1beta1")
    assert found["status"]["expirationTimestamp"].endswith("Z")
    assert "Action=GetCallerIdentity" in request_in(found["status"]["token"])


def test_without_credentials_the_plugin_says_so_and_prints_no_token(
    credentials: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert main(["--cluster", "llm", "--region", "us-east-2"]) == AwsError.exit_code
    told = capsys.readouterr()
    assert told.out == ""
    assert "needs credentials" in told.err
