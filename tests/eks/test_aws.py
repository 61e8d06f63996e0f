"""Ways into AWS as the AWS CLI finds them, and what AWS refuses in words."""

import json
import time
from datetime import UTC, datetime, timedelta
from hashlib import sha1
from pathlib import Path

import botocore.exceptions
import botocore.session
import pytest

from diptych.eks.aws import AwsError, Session, action_of
from diptych.eks.refusals import in_words
from diptych.eks.sso import token_ends
from fakes.aws import FakeAws

REGION = "us-east-2"


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No credentials anywhere; the folder in which AWS's configuration would be."""
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def refused(session: Session, service: str = "eks", operation: str = "list_clusters") -> AwsError:
    with pytest.raises(AwsError) as caught:
        session.call(service, operation)
    return caught.value


def test_the_caller_is_asked_of_aws_once(shared: FakeAws, session: Session) -> None:
    identity = session.who()
    assert (identity.account, identity.arn) == ("123456789012", "arn:aws:iam::123456789012:user/tester")
    assert identity.expires is None
    assert session.who() is identity
    assert len(shared.called("sts:GetCallerIdentity")) == 1


def test_without_credentials_it_says_how_to_get_some(nobody: Path) -> None:
    with pytest.raises(AwsError) as caught:
        Session(REGION).who()
    assert caught.value.kind == "credentials"
    assert "aws configure sso" in caught.value.hint


def test_a_profile_that_is_not_there_is_named_with_those_that_are(
    nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nobody / "config").write_text("[profile lab]\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_PROFILE", "lap")
    with pytest.raises(AwsError) as caught:
        Session(REGION).who()
    assert "(lap)" in caught.value.message
    assert "lab" in caught.value.hint


def test_an_sso_sign_in_that_has_expired_names_the_command(nobody: Path) -> None:
    (nobody / "config").write_text(
        "[profile lab]\nsso_session = corp\nsso_account_id = 111122223333\nsso_role_name = dev\n"
        "[sso-session corp]\nsso_start_url = https://corp.example.com\nsso_region = eu-west-1\n"
        "sso_registration_scopes = sso:account:access\n"
    )
    with pytest.raises(AwsError) as caught:
        Session(REGION, "lab").who()
    assert caught.value.kind == "credentials"
    assert caught.value.hint == "run aws sso login --profile lab"


def test_the_region_of_the_profile_is_known_and_the_documents_is_used(
    nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nobody / "config").write_text("[profile lab]\nregion = eu-west-1\n")
    session = Session(REGION, "lab")
    assert (session.region, session.configured_region, session.profile) == (REGION, "eu-west-1", "lab")
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    assert Session(REGION, "lab").configured_region == "ap-south-1"


def test_keys_of_the_environment_come_before_aws_profile_as_for_eksctl_and_not_before_a_profile_asked_for(
    nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nobody / "credentials").write_text("[lab]\naws_access_key_id = OF_LAB\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    for asked, profile, key in ((None, None, "OF_SHELL"), ("lab", "lab", "OF_LAB")):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OF_SHELL")
        session = Session(REGION, asked)
        assert session.profile == profile
        assert session._boto.get_credentials().access_key == key
        for name, value in session.environ({}).items():
            monkeypatch.setenv(name, value)
        # A program that asks for no profile takes keys, then `AWS_PROFILE`; empty variables are none.
        assert botocore.session.Session().get_credentials().access_key == key


def test_expired_credentials_say_so_whatever_the_service_calls_them(
    shared: FakeAws, session: Session
) -> None:
    shared.faults.credentials = "expired"
    for service, operation in (
        ("sts", "get_caller_identity"),
        ("ec2", "describe_vpcs"),
        ("eks", "list_clusters"),
    ):
        error = refused(session, service, operation)
        assert error.kind == "credentials", error.code
        assert error.message == "the AWS credentials have expired"
        assert "aws sso login" in error.hint


def test_credentials_that_nobody_knows_are_told_from_expired_ones(shared: FakeAws, session: Session) -> None:
    shared.faults.credentials = "invalid"
    for service, operation in (("ec2", "describe_vpcs"), ("eks", "list_clusters")):
        error = refused(session, service, operation)
        assert (error.kind, "expired" in error.message) == ("credentials", False)
        assert "region" in error.hint or "region" in error.message


def test_a_missing_permission_names_the_action(shared: FakeAws, session: Session) -> None:
    shared.faults.denied |= {"eks:ListClusters", "ec2:DescribeVpcs"}
    assert refused(session).message.startswith("AWS does not let you eks:ListClusters: ")
    error = refused(session, "ec2", "describe_vpcs")
    assert (error.kind, error.action) == ("denied", "ec2:DescribeVpcs")
    assert "ec2:DescribeVpcs" in error.hint


def test_requests_that_come_too_fast_are_made_again(shared: FakeAws, session: Session) -> None:
    shared.faults.throttled["eks:ListClusters"] = 1
    shared.faults.broken["ec2:DescribeVpcs"] = 1
    assert session.call("eks", "list_clusters")["clusters"] == []
    assert session.call("ec2", "describe_vpcs")["Vpcs"]
    assert len(shared.called("eks:ListClusters")) == 2


def test_what_is_not_there_is_none_and_no_error(shared: FakeAws, session: Session) -> None:
    assert session.find("eks", "describe_cluster", name="none") is None
    assert session.find("cloudformation", "describe_stacks", StackName="none") is None
    with pytest.raises(AwsError) as caught:
        session.call("eks", "describe_cluster", name="none")
    assert caught.value.kind == "missing"


def test_a_listing_comes_whole_though_in_pages(shared: FakeAws, session: Session) -> None:
    shared.faults.page_size = 1
    for zone in ("a", "b", "c"):
        shared.ec2.reserve("g6.8xlarge", f"{REGION}{zone}", 1)
    found = list(session.pages("ec2", "describe_capacity_reservations", "CapacityReservations"))
    assert len(found) == 3
    assert len(shared.called("ec2:DescribeCapacityReservations")) == 3


def test_an_address_that_nobody_answers_at_is_no_traceback(
    shared: FakeAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("diptych.eks.aws._ATTEMPTS", 1)
    error = refused(Session(REGION))
    assert error.kind == "unreachable"
    assert "eks:ListClusters" in error.message
    assert "HTTPS_PROXY" in error.hint


def test_a_clock_that_is_wrong_is_seen(shared: FakeAws, session: Session) -> None:
    shared.clock_skew_s = 120
    session.who()
    assert session.clock_ahead_s == pytest.approx(-120, abs=3)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("SignatureDoesNotMatch", "Signature expired: 20261130T120000Z is now earlier than 20261130T121000Z"),
        ("InvalidSignatureException", "Signature not yet current: 20261130T130000Z is still later than …"),
        (
            "RequestTimeTooSkewed",
            "The difference between the request time and the current time is too large.",
        ),
    ],
)
def test_signatures_that_a_wrong_clock_spoils_are_told_as_that(code: str, message: str) -> None:
    answer = {"Error": {"Code": code, "Message": message}}
    with pytest.raises(AwsError) as caught, in_words(None, "eks:ListClusters"):
        raise botocore.exceptions.ClientError(answer, "ListClusters")
    assert caught.value.kind == "clock"
    assert "timedatectl" in caught.value.hint


def test_what_ec2_encodes_for_machines_is_left_out() -> None:
    message = "You are not authorized. Encoded authorization failure message: 4e_x9-AAAA"
    answer = {"Error": {"Code": "UnauthorizedOperation", "Message": message}}
    with pytest.raises(AwsError) as caught, in_words(None, "ec2:RunInstances"):
        raise botocore.exceptions.ClientError(answer, "RunInstances")
    assert "4e_x9" not in caught.value.message
    assert "ec2:RunInstances" in caught.value.message


def test_actions_are_named_as_policies_name_them() -> None:
    assert action_of("elbv2", "describe_load_balancers") == "elasticloadbalancing:DescribeLoadBalancers"
    assert action_of("resourcegroupstaggingapi", "get_resources") == "tag:GetResources"


def sign_in(home: Path, session: str, **more: str) -> None:
    folder = home / ".aws" / "sso" / "cache"
    folder.mkdir(parents=True)
    ends = (datetime.now(UTC) + timedelta(minutes=20)).strftime("%Y-%m-%dT%H:%M:%SZ")
    (folder / f"{sha1(session.encode()).hexdigest()}.json").write_text(
        json.dumps({"expiresAt": ends, **more})
    )


def test_an_sso_sign_in_says_when_it_ends_also_for_a_role_that_comes_of_it(nobody: Path) -> None:
    sign_in(nobody, "corp")
    profiles = {"lab": {"sso_session": "corp"}, "admin": {"role_arn": "arn:…", "source_profile": "lab"}}
    ends = token_ends({"profiles": profiles}, "admin")
    assert ends is not None
    assert 0 < ends.timestamp() - time.time() <= 1200
    assert token_ends({"profiles": {"plain": {}}}, "plain") is None


def test_an_sso_sign_in_that_renews_itself_does_not_end(nobody: Path) -> None:
    sign_in(nobody, "corp", refreshToken="r")
    assert token_ends({"profiles": {"lab": {"sso_session": "corp"}}}, "lab") is None


def test_credentials_of_the_environment_say_when_they_end(
    shared: FakeAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = datetime.now(UTC) + timedelta(hours=1)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "t")
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", ends.isoformat())
    assert Session(REGION).who().expires == ends
