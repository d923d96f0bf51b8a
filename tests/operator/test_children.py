"""How often the routes are applied where somebody is in the way or undoes it: never faster than the server can bear."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from bireme.names import KIND
from bireme.wire.routes import Routes
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import Conflict
from bireme_operator.render.owned import Owner
from bireme_operator.shell.belongings import Belongings
from bireme_operator.shell.children import HEALED_MOST, HEALED_WITHIN_S, Children
from bireme_operator.shell.errands import Errands

OWNER = Owner("demo", "default", "uid")
ROUTES = Routes(1, ("m",), ())
MINUTE_S = 60.0


class Server:
    """Answers as the API server does; ``holder`` is the uid of the deployment whose object is there."""

    def __init__(self, holder: str) -> None:
        self.asked = 0
        self.version = 1
        self._holder = holder

    async def apply(self, manifest: Mapping[str, Any], **_: object) -> Mapping[str, Any]:
        return await self.apply_anew(manifest)

    async def apply_anew(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked += 1
        if self._holder != OWNER.uid:
            raise Conflict("another object has this name")
        return self.body(manifest)

    async def find(self, *_: object) -> Mapping[str, Any]:
        return self.body({"metadata": {}})

    async def list(self, *_: object) -> Mapping[str, Any]:
        return {"items": []}

    def body(self, manifest: Mapping[str, Any], **changed: object) -> Mapping[str, Any]:
        self.version += 1
        holder = {"kind": KIND, "name": OWNER.name, "uid": self._holder, "controller": True}
        meta = {"name": "demo-routes", "namespace": "default", "uid": "u", "resourceVersion": str(self.version)}
        return {**manifest, "metadata": {**manifest["metadata"], **meta, "ownerReferences": [holder]}, **changed}


async def asked_in_a_minute(server: Server, *, undone: bool = False) -> int:
    """Visit as often as `publish` and its errands ask for; somebody may undo what is written at once."""
    wanted, belongings, now = asyncio.Event(), Belongings(), 0.0
    errands = Errands(wanted.set)
    children = Children(cast("Kube", server), OWNER, belongings, b"k" * 32, "image", errands)
    while now < MINUTE_S:
        due = children.publish(ROUTES, now)
        while "routes" in errands:
            await asyncio.sleep(0)
        errands.check()
        seen, begun = server.asked, wanted.is_set()
        wanted.clear()
        if undone and begun and seen:
            belongings.see("ConfigMap", server.body({"metadata": {}}, data={"not": "ours"}))
        elif not begun:
            now = due or MINUTE_S
    return server.asked


async def test_routes_of_an_earlier_deployment_are_waited_for_as_slowly_as_those_of_anybody_else() -> None:
    assert await asked_in_a_minute(Server("an earlier one's")) <= 12


async def test_whoever_undoes_the_routes_again_and_again_is_not_fought_at_full_speed() -> None:
    most = HEALED_MOST * (MINUTE_S / HEALED_WITHIN_S + 1)
    assert 2 < await asked_in_a_minute(Server(OWNER.uid), undone=True) <= most
