"""One sample of every message of every conversation; golden frames and fuzzing both start here."""

from typing import Any

import msgspec

from bireme.wire import control, journal, plan, profile, requests, routes, state
from bireme_worker.coordinator import messages

CHECKPOINT = control.Checkpoint("/models/m", "2026-11-01", 2)
RANK_PROFILE = profile.RankProfile(
    1, 1, "cpu", 20, 40, 40, 1.5, 0.25, {"compute": 0.25}, {"bireme.layers": 0.25},
    (profile.Top("aten::mm", 4, 0.1),), "ccgg", 0.05, 100, False, 5,
)  # fmt: skip
ADDRESS = control.Address("127.0.0.2", 8010)
SAMPLING = plan.Sampling(temperature=0.7, top_p=0.9, logit_bias={5: 1.5}, seed=2**63 + 1, stop_ids=(2,))
LIMITS = requests.Limits(2048, 64, 256)

CONTROL: list[control.ControlMessage] = [
    control.Hello("g", 1, 3, "b0", 7, (ADDRESS,), CHECKPOINT, CHECKPOINT),
    control.Welcome(1, 3, CHECKPOINT),
    control.Superseded(4),
    control.Become(1),
    control.Load(CHECKPOINT),
    control.Loaded(CHECKPOINT, 512, 1),
    control.Form(9, ((ADDRESS,), (ADDRESS,)), ADDRESS, 512),
    control.Formed(9, 1),
    control.Beat((control.RankBeat(0, True, "Serving", 9, 100, 3000, True),)),
    control.End(9, "RankLost"),
    control.Ended(9, 1),
    control.Lost(9, "RankLost", "rank 1 ended with signal 9"),
    control.Leaving(30.0),
    control.Standing(9, "Recovering", "RankLost", "rank 1 of stage 1 ended", 1.0),
    control.Failed("BadCheckpoint", "model.safetensors is 5 bytes", 65, 1, 9),
    control.Stage(CHECKPOINT),
    control.Prepared(2, 1, ""),
    control.Committed(2, 1),
    control.Discard(3),
    control.Profile("9ee3c79b", 9, "Prepare", 20, 2.0),
    control.Profiled("9ee3c79b", 1, "", RANK_PROFILE),
    control.Stop("drained"),
]

PLAN: list[Any] = [
    plan.Attach(9, 1, 0),
    plan.Plan(
        9,
        4,
        (plan.Row(1, 0, 3, plan.pack_ids([5, 6, 7]), (4,), -1), plan.Row(2, 17, 1, b"", (), 3)),
        (plan.Admit(1, SAMPLING, plan.pack_ids([5, 6, 7]), plan.pack_ids([8])),),
        (3,),
    ),
    plan.Commit(9, 2),
    plan.Plan(9, 4, (plan.Row(3, 20, 1, b"", (), 7),), masks={3: b"\xff\x0f"}),
    plan.Result(9, 4, plan.pack_ids([11]), (0,), (plan.Logprobs(-0.5, ((11, -0.5),)),)),
    plan.Result(9, 5, plan.pack_ids([0]), vectors=(b"\0\0\x80\x3f",)),
]

REQUESTS: list[Any] = [
    requests.Submit(1, "r1", plan.pack_ids([1, 2]), SAMPLING, 16, plan.pack_ids([3]), 1, True, "5f3a"),
    requests.Submit(2, "r2", plan.pack_ids([1, 2]), plan.Sampling(), 1, encode=True),
    requests.Allow(1, 4, b"\xff\x0f"),
    requests.Cancel(1),
    requests.Frame(4, (requests.Tokens(1, plan.pack_ids([9]), "stop", 16, (plan.Logprobs(-0.1),), "why"),)),
    requests.Frame(5, (requests.Tokens(2, plan.pack_ids([0]), "length", vector=b"\0\0\x80\x3f"),)),
    requests.Accepted(1),
    requests.Refused(1, 503, "draining", 2.0),
    requests.Serving(True, "None", "", 0.0, 9, "2026-11-01", 2, LIMITS, "/models/m", "5f3a"),
]

COORDINATOR: list[Any] = [
    messages.Begin(9, 512, "2026-11-01", 2, "/models/m"),
    messages.Begun(9),
    messages.Serve(9),
    messages.Finish(9, "RankLost", "rank 1 of stage 1 ended", 1.0),
    messages.PlanLost(9, 1, 0),
    messages.Reload(9, 3, "/models/m2", True, 60.0),
    messages.Quiet(9, 3),
    messages.Unfit(3, "tokenizer.json is missing"),
    messages.Swap(9, 3, "/models/m2", "2026-12-01"),
    messages.Drain(30.0),
    messages.Undrain(),
    messages.Abort("r1"),
    messages.Status(9, 1, 2, 30, 4, 512, 17, 0.2, False, 10, 3, 5, {"stop": 1}),
]

CONVERSATIONS: dict[str, tuple[Any, list[Any]]] = {
    "control": (control.control_codec, CONTROL),
    "plan": (plan.plan_codec, PLAN),
    "requests": (requests.request_codec, REQUESTS),
    "coordinator": (messages.coordinator_codec, COORDINATOR),
}

JOURNAL: list[journal.JournalEntry] = [
    journal.Opened(1, [1, 2], "2026-11-01"),
    journal.Emitted(0, [9]),
    journal.Emitted(1, [9, 10], "stop"),
    journal.Handover("drain"),
]

EXTENSION = journal.Extension(
    "r1",
    1764288000,
    2**63 + 1,
    journal.Resume([1, 2], "2026-11-01", [journal.ResumedChoice(0, [9]), journal.ResumedChoice(1, [9], "stop")]),
)

STATE = state.StateDocument(
    v=1,
    seq=12,
    group="g",
    stage=0,
    incarnation=3,
    boot="b0",
    epoch=9,
    state="Serving",
    reason="None",
    message="",
    retry_after_s=0.0,
    revision="abc",
    model_revision="2026-11-01",
    generation=2,
    reload=state.ReloadState("Failed", "2026-12-01", "truncated", "/models/m2", True, 4),
    running=1,
    waiting=0,
    queued_prefill_tokens=0,
    kv_blocks_used=3,
    kv_blocks=512,
    block_size=16,
    step=100,
    step_age_s=0.1,
    draining=False,
    limits=LIMITS,
    stages=(state.StageState(0, 3, "b0", 0.0, (state.RankState(0, True, 77, "Serving", 100, 0.1, 1),)),),
    source="/models/m",
)

ADMIN = [
    state.DrainRequest(30.0),
    state.ReloadRequest("/models/m2", "2026-12-01", "restart", 60.0, 4),
    state.AbortRequest("r1"),
    state.LeaderRequest("127.0.0.9", 4),
    state.AdoptRequest("g", 0, 1, 4, "127.0.0.9", "/models/m", "one", "00ff"),
    state.UndrainRequest(),
]

ROUTES = routes.Routes(
    1, ("m",), (routes.Route("g", 0, "p", 3, "http://127.0.0.2:8000", "http://127.0.0.2:8001", "/t"),)
)


def golden() -> dict[str, str]:
    """Every sample as hex of its frame, or as JSON text."""
    frames = {
        f"{name}/{type(message).__name__}": codec.frame(message).hex()
        for name, (codec, messages_) in CONVERSATIONS.items()
        for message in messages_
    }
    lines = {
        f"journal/{index}-{type(entry).__name__}": journal.journal_line(entry).decode()
        for index, entry in enumerate(JOURNAL)
    }
    documents = {
        f"json/{type(item).__name__}": msgspec.json.encode(item).decode() for item in [EXTENSION, STATE, *ADMIN, ROUTES]
    }
    return frames | lines | documents
