"""The scheduler against an executable model of a rank, under every order of events that hypothesis can find."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bireme.wire.plan import Sampling
from bireme.wire.requests import Submit
from bireme_worker.engine.sequence import Sequence, finish_reason
from tests.support.engine_driver import Engine, submit
from tests.support.model_rank import VOCABULARY, reference

POISON = VOCABULARY
"""A token that is never drawn; a prompt with it gives logits that are not finite."""

# Prompts share prefixes often: a common head of 0 to 3 blocks, then a tail of their own.
heads = st.integers(0, 50).map(lambda count: [index % 7 for index in range(count)])
tails = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30)
whole_blocks = st.sampled_from([16, 32, 48]).map(lambda count: [index % 7 for index in range(count)])
prompts = st.builds(lambda head, tail: head + tail, heads, tails) | whole_blocks
samplings = st.builds(
    Sampling,
    seed=st.integers(0, 3),
    choice=st.integers(0, 1),
    min_tokens=st.integers(0, 8),
    stop_ids=st.sampled_from([(), (1,), (2, 3), tuple(range(20))]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    logprobs=st.sampled_from([-1, 0, 2]),
)


class EngineMachine(RuleBasedStateMachine):
    """Requests come, leave, are poisoned; plans and results interleave; epochs end; the pool is far too small."""

    stages = 1
    depth = 2
    kv_blocks = 12
    slots = 4
    budget = 24
    prefix_caching = True
    speculation = 0

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(
            kv_blocks=self.kv_blocks,
            slots=self.slots,
            budget=self.budget,
            stages=self.stages,
            depth=self.depth,
            prefix_caching=self.prefix_caching,
            speculation=self.speculation,
            poison=frozenset({POISON}),
        )
        self.requests: dict[Sequence, Submit] = {}
        self.cancelled: set[Sequence] = set()

    def _submit(self, request: Submit) -> None:
        if not finish_reason(Sequence.of(request, 0.0, 0)):
            self.requests[self.engine.submit(request)] = request

    def _pool_tokens(self) -> int:
        return self.engine.scheduler.space.pool.total * 16

    @rule(prompt=prompts, sampling=samplings, max_tokens=st.integers(1, 60), priority=st.integers(-1, 1))
    def a_request_comes(self, prompt: list[int], sampling: Sampling, max_tokens: int, priority: int) -> None:
        max_tokens = min(max_tokens, self._pool_tokens() - len(prompt))
        self._submit(submit(prompt, max_tokens, sampling, priority=priority))

    @rule(prompt=prompts, sampling=samplings, max_tokens=st.integers(1, 60), data=st.data())
    def a_request_is_resumed(self, prompt: list[int], sampling: Sampling, max_tokens: int, data: st.DataObject) -> None:
        max_tokens = min(max_tokens, self._pool_tokens() - len(prompt))
        whole, _ = reference(prompt, sampling, max_tokens)
        kept = data.draw(st.integers(0, len(whole)))
        self._submit(submit(prompt, max_tokens, sampling, whole[:kept]))

    @rule(prompt=prompts, where=st.integers(0, 10))
    def a_poisoned_request_comes(self, prompt: list[int], where: int) -> None:
        prompt.insert(where, POISON)
        self._submit(submit(prompt, 5))

    @rule()
    def a_plan_is_issued(self) -> None:
        self.engine.plan()

    @precondition(lambda self: self.engine.results)
    @rule()
    def a_result_arrives(self) -> None:
        self.engine.land()

    @rule(steps=st.integers(1, 40))
    def the_engine_runs(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()
            self.engine.check()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def a_client_leaves(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(list(self.requests)))
        if sequence not in self.engine.finished:
            self.cancelled.add(sequence)
        self.engine.cancel(sequence)

    @rule(kv_blocks=st.integers(12, 16))
    def an_epoch_ends_and_another_begins(self, kv_blocks: int) -> None:
        self.engine.begin(max(kv_blocks, self.engine.scheduler.space.pool.total + 1))

    @invariant()
    def blocks_and_slots_add_up(self) -> None:
        self.engine.check()

    def teardown(self) -> None:
        self.engine.run()
        self.engine.check_empty()
        for sequence, request in self.requests.items():
            self._judge(sequence, request)

    def _judge(self, sequence: Sequence, request: Submit) -> None:
        prompt, given = _ids(request.prompt), _ids(request.outputs)
        emitted = self.engine.emitted.get(sequence, [])
        if sequence in self.cancelled:
            assert sequence not in self.engine.finished
            expected, _ = reference(prompt, request.sampling, request.max_tokens, given)
            assert given + emitted == expected[: len(given) + len(emitted)]
        elif POISON in prompt:
            assert self.engine.finished[sequence] == "error"
            assert not emitted
        else:
            expected, finish = reference(prompt, request.sampling, request.max_tokens, given)
            assert (given + emitted, self.engine.finished[sequence]) == (expected, finish)


def _ids(data: bytes) -> list[int]:
    return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]


def _machine(name: str, **overrides: object) -> type[EngineMachine]:
    return type(name, (EngineMachine,), overrides)


SETTINGS = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

TestOneStageDepthTwo = _machine("OneStageDepthTwo").TestCase
TestOneStageDepthOne = _machine("OneStageDepthOne", depth=1).TestCase
TestTwoStagesDepthTwo = _machine("TwoStagesDepthTwo", stages=2, depth=2).TestCase
TestTwoStagesDepthThree = _machine("TwoStagesDepthThree", stages=2, depth=3).TestCase
TestThreeStagesDepthFour = _machine("ThreeStagesDepthFour", stages=3, depth=4, slots=6).TestCase
TestWithoutPrefixCache = _machine("WithoutPrefixCache", prefix_caching=False).TestCase
TestBudgetOfOneTokenPerSlot = _machine("BudgetOfOneTokenPerSlot", slots=3, budget=3).TestCase
TestDrafts = _machine("Drafts", speculation=5, slots=3, budget=32).TestCase
TestDraftsOverTwoStages = _machine("DraftsOverTwoStages", speculation=3, stages=2, depth=3, budget=32).TestCase

for _name in [name for name in globals() if name.startswith("Test")]:
    globals()[_name].settings = SETTINGS
