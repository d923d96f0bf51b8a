"""Disruption budgets are the operator's own: what others copy, write anew or leave behind is not taken for one of them."""

from typing import Any

import pytest

from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import AlreadyExists, Conflict
from bireme_operator.render.budgets import render_budget
from bireme_operator.render.owned import Owner
from bireme_operator.shell.budgets import Budgets
from bireme_operator.shell.errands import Errands

OWNER = Owner("demo", "default", "uid")


class Server(Kube):
    """An API server that keeps budgets by name."""

    def __init__(self) -> None:
        self.bodies: dict[str, dict[str, Any]] = {}
        self.made = 0

    async def list(self, *_: Any) -> dict[str, Any]:
        return {"items": [*self.bodies.values()]}

    async def create(self, manifest: dict[str, Any], **_: Any) -> dict[str, Any]:
        if manifest["metadata"]["name"] in self.bodies:
            raise AlreadyExists("it is there")
        return self.keep(manifest)

    async def apply(self, manifest: dict[str, Any], **_: Any) -> dict[str, Any]:
        known = self.bodies[manifest["metadata"]["name"]]
        return self.keep(manifest | {"spec": known["spec"] | manifest["spec"]})

    async def delete(self, resource: Any, namespace: str, name: str, **known: Any) -> dict[str, Any]:
        if self.bodies[name]["metadata"]["uid"] != known["uid"]:
            raise Conflict("another one")
        return self.bodies.pop(name)

    def keep(self, body: dict[str, Any]) -> dict[str, Any]:
        self.made += 1
        kept = self.bodies[body["metadata"]["name"]] = body | {
            "metadata": body["metadata"] | {"uid": f"uid-{self.made}"}
        }
        return kept


async def settled(server: Server, groups: dict[int, int]) -> Budgets:
    """Look, and make what these groups need."""
    errands = Errands(lambda: None)
    budgets = Budgets(server, OWNER, errands)
    await budgets.look()
    budgets.keep(groups, {})
    await errands.finish("budgets")
    errands.check()
    return budgets


async def test_a_copy_that_somebody_has_made_of_a_budget_is_left_alone() -> None:
    server = Server()
    body = render_budget(OWNER, 0, 2)
    server.keep(body | {"metadata": body["metadata"] | {"name": "copy", "ownerReferences": []}})
    del server.bodies["copy"]["metadata"]["labels"]["bireme.dev/group"]
    await settled(server, {0: 2, 1: 2})
    assert server.bodies.keys() == {"copy", "demo-0", "demo-1"}
    await settled(server, {})
    assert server.bodies.keys() == {"copy"}


async def test_the_budget_of_a_deployment_that_had_the_name_before_counts_for_nothing() -> None:
    server = Server()
    server.keep(render_budget(Owner("demo", "default", "before"), 7, 2))
    await settled(server, {0: 2})
    assert server.bodies.keys() == {"demo-0", "demo-7"}


@pytest.mark.parametrize(
    "spec",
    [
        {"maxUnavailable": 1, "selector": render_budget(OWNER, 0, 2)["spec"]["selector"]},
        render_budget(OWNER, 0, 2)["spec"] | {"selector": {"matchLabels": {"app": "mine"}}},
        render_budget(OWNER, 0, 2)["spec"] | {"minAvailable": "50%"},
        render_budget(OWNER, 0, 1)["spec"],
    ],
)
async def test_a_budget_that_somebody_has_written_anew_is_made_again(spec: dict[str, Any]) -> None:
    server = Server()
    server.keep(render_budget(OWNER, 0, 2) | {"spec": spec})
    await settled(server, {0: 2})
    assert server.bodies["demo-0"]["spec"] == render_budget(OWNER, 0, 2)["spec"]


async def test_a_budget_of_somebody_else_s_that_has_the_name_is_left_alone() -> None:
    server = Server()
    theirs = {**render_budget(OWNER, 0, 2), "spec": {"maxUnavailable": 0}}
    kept = server.keep(theirs | {"metadata": {"name": "demo-0"}})
    await settled(server, {0: 2, 1: 2})
    assert server.bodies["demo-0"] == kept
    assert server.bodies.keys() == {"demo-0", "demo-1"}
