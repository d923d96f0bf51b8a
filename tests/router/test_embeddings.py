"""Embeddings through the router: the worker's own object, sent again where a group fails, refused where it is wrong."""

from tests.router.conftest import Launch
from tests.support.stub_leader import Raw, Refuse, ResetAfterBody

EMBEDDINGS = "/v1/embeddings"
OBJECT = b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1.0]}],"model":"m"}'


async def test_the_workers_object_comes_as_it_is(launch: Launch) -> None:
    fleet = await launch()
    fleet.script.append(Raw(OBJECT))
    reply = await fleet.client.ask(EMBEDDINGS, input=["ship"])
    assert (reply.status, reply.body) == (200, OBJECT)
    assert reply.headers["content-type"] == "application/json"
    sent = fleet.leaders[0].received[0].json
    assert sent["input"] == ["ship"]
    assert "stream" not in sent
    await fleet.until_quiet()


async def test_a_group_that_fails_costs_nothing_but_a_second_try(launch: Launch) -> None:
    fleet = await launch(2)
    fleet.script.extend([ResetAfterBody(), Refuse(503, unprocessed=True), Raw(OBJECT)])
    reply = await fleet.client.ask(EMBEDDINGS, input="ship")
    assert (reply.status, reply.body) == (200, OBJECT)
    assert fleet.received == 3
    bodies = {received.body for leader in fleet.leaders for received in leader.received}
    assert len(bodies) == 1, "each try sends the same bytes"


async def test_what_the_worker_finds_wrong_is_not_tried_again(launch: Launch) -> None:
    fleet = await launch(2)
    fleet.script.append(Refuse(400, unprocessed=True))
    reply = await fleet.client.ask(EMBEDDINGS, input=5)
    assert reply.status == 400
    assert fleet.received == 1
