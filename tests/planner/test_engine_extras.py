"""Drafts and adapters reach the pods by their environment; deployments without them render as they always did."""

import pytest
from pydantic import ValidationError

from bireme.api.deployment import Spec
from bireme.names import Env
from bireme_operator.plan.rendering import Rendering
from bireme_operator.plan.revision import pod_revision

SPEC = {"model": {"source": {"path": "/models/base"}, "revision": "1"}, "template": {}}


def spec(**engine: object) -> Spec:
    return Spec.model_validate({**SPEC, "engine": engine})


def environment(of: Spec) -> dict[str, str]:
    return dict(Rendering.of(of, "base").environment)


def test_drafts_and_adapters_are_told_to_the_pods() -> None:
    told = environment(spec(speculation=5, adapters={"pirate": "/models/pirate", "lawyer": "/models/lawyer"}))
    assert told[Env.SPECULATION] == "5"
    assert told[Env.ADAPTERS] == "pirate=/models/pirate,lawyer=/models/lawyer"


def test_without_them_nothing_is_said_and_no_pod_is_rolled() -> None:
    assert not {Env.SPECULATION, Env.ADAPTERS} & environment(spec()).keys()
    assert pod_revision(spec(), "m") == pod_revision(spec(speculation=0, adapters={}), "m")
    changed = {pod_revision(one, "m") for one in (spec(), spec(speculation=3), spec(adapters={"a": "/a"}))}
    assert len(changed) == 3


@pytest.mark.parametrize("path", ["relative", "/with,comma", "/with=sign"])
def test_an_adapter_needs_an_absolute_path_that_the_list_can_carry(path: str) -> None:
    with pytest.raises(ValidationError, match="adapters"):
        spec(adapters={"a": path})
