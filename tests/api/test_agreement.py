"""Pydantic and the CRD say the same of any object, and what passes comes back unchanged from its own YAML form."""

from typing import Any

from hypothesis import assume, given

from bireme.api import InvalidDeployment, parse
from bireme.api.status import Status
from bireme.api.unbuilt import UNBUILT
from tests.api.api_server import refusals
from tests.api.objects import minimal
from tests.api.strategies import BUILT, ROOT, SPEC, documents, objects


def accepted(document: dict[str, Any]) -> bool:
    try:
        parse(document)
    except InvalidDeployment:
        return False
    return True


@given(documents())
def test_pydantic_and_the_crd_give_the_same_verdict(document: dict[str, Any]) -> None:
    assert accepted(document) == (refusals(document) == [])


@given(documents(right=True))
def test_a_deployment_comes_back_unchanged_from_its_own_yaml_form(document: dict[str, Any]) -> None:
    assume(accepted(document))
    deployment = parse(document)
    written = deployment.to_dict()
    assert parse(written) == deployment
    assert refusals(written) == []


@given(objects(ROOT["properties"]["status"]))
def test_a_status_fits_the_crd_and_comes_back_unchanged(status: dict[str, Any]) -> None:
    document = minimal() | {"status": status}
    assume(accepted(document))
    deployment = parse(document)
    assert isinstance(deployment.status, Status)
    assert parse(deployment.to_dict()) == deployment
    assert refusals(deployment.to_dict()) == []


def test_the_verdicts_are_about_both_kinds() -> None:
    assert accepted(minimal()), "without a right object the agreement would say nothing"
    assert not accepted({})


def test_every_line_of_the_table_names_a_field() -> None:
    assert set(UNBUILT) <= {".".join(path) for path, _ in SPEC}
    assert len(BUILT) < len(SPEC)
