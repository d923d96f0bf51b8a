"""Disruption budgets are the operator's own: what others copy, write anew or leave behind is not taken for one of them."""

from typing import Any

import pytest

from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import AlreadyExists, Conflict, NotFound
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

    async def find(self, resource: Any, namespace: str, name: str) -> dict[str, Any] | None:
        return self.bodies.get(name)

    async def create(self, manifest: dict[str, Any], **_: Any) -> dict[str, Any]:
        if manifest["metadata"]["name"] in self.bodies:
            raise AlreadyExists("it is there")
        return self.keep(manifest)

    async def apply(self, manifest: dict[str, Any], **_: Any) -> dict[str, Any]:
        known = self.bodies[manifest["metadata"]["name"]]
        return self.keep(manifest | {"spec": known["spec"] | manifest["spec"]})

    async def delete(self, resource: Any, namespace: str, name: str, **known: Any) -> dict[str, Any]:
        if name not in self.bodies:
            raise NotFound("it is gone")
        if self.bodies[name]["metadata"]["uid"] != known["uid"]:
            raise Conflict("another one")
        return self.bodies.pop(name)

    def keep(self, body: dict[str, Any]) -> dict[str, Any]:
        self.made += 1
        kept = self.bodies[body["metadata"]["name"]] = body | {
            "metadata": body["metadata"] | {"uid": f"uid-{self.made}", "resourceVersion": str(self.made)}
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


@pytest.mark.parametrize("lost", ["labels", "ownerReferences"])
async def test_a_budget_that_lost_its_labels_or_was_left_by_a_deployment_before_is_ours_again(lost: str) -> None:
    server, wanted = Server(), render_budget(OWNER, 0, 2)
    server.keep(wanted | {"metadata": wanted["metadata"] | {lost: type(wanted["metadata"][lost])()}})
    budgets = await settled(server, {0: 2})
    assert wanted["metadata"].items() <= server.bodies["demo-0"]["metadata"].items()
    assert not budgets.conflicts


async def test_a_budget_that_is_gone_already_is_no_fault() -> None:
    server = Server()
    for index in range(6):
        server.keep(render_budget(OWNER, index, 2))
    errands = Errands(lambda: None)
    budgets = Budgets(server, OWNER, errands)
    await budgets.look()
    server.bodies.clear()
    server.keep(render_budget(OWNER, 6, 2) | {"metadata": {"name": "demo-6"}})
    budgets.keep(dict.fromkeys(range(6, 12), 2), {})
    await errands.finish("budgets")
    errands.check()
    assert server.bodies.keys() == {f"demo-{index}" for index in range(6, 12)}


async def test_a_budget_of_somebody_else_s_that_has_the_name_is_left_alone() -> None:
    server = Server()
    theirs = {**render_budget(OWNER, 0, 2), "spec": {"maxUnavailable": 0}}
    kept = server.keep(theirs | {"metadata": {"name": "demo-0"}})
    await settled(server, {0: 2, 1: 2})
    assert server.bodies["demo-0"] == kept
    assert server.bodies.keys() == {"demo-0", "demo-1"}
