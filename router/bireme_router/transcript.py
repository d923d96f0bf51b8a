"""What one client holds of its answer, over all attempts: everything that a continuation needs, and nothing else.

Ids are kept as four-byte arrays, since prompts of 100,000 tokens are normal.
"""

from array import array
from dataclasses import dataclass, field

from bireme.wire.journal import Opened, Resume, ResumedChoice
from bireme_router.policies.continuation import Delivered


@dataclass
class ChoiceSoFar:
    """Delivered ids of one choice, and how it ended if it did."""

    ids: "array[int]" = field(default_factory=lambda: array("i"))
    finish_reason: str | None = None


class Transcript:
    """Grows by committed journal entries and delivered events; its arguments are what the client asked for."""

    def __init__(self, expected_choices: int, *, wants_usage: bool) -> None:
        self.model_revision: str | None = None
        self.tokens = 0
        self.prompt: array[int] = array("i")
        self.greeted: set[int] = set()
        self.usage_delivered = False
        self.cached_tokens: int | None = None
        """Prompt tokens that the group says it had in its cache; None while it has not said."""
        self.untold_text = False
        self._choices: dict[int, ChoiceSoFar] = {}
        self._expected = expected_choices
        self._wants_usage = wants_usage

    def opened(self, entry: Opened) -> None:
        """The group says how it sees the prompt. A later group says the same, or nothing was delivered before it."""
        self.model_revision = entry.model_revision
        self.prompt = array("i", entry.prompt_token_ids)
        self.cached_tokens = entry.cached_tokens

    def move_to(self, model_revision: str) -> None:
        """The stream goes on under other weights, as `--cross-revision` or a reload in mode `restart` has it."""
        self.model_revision = model_revision

    def emitted(self, choice: int, ids: list[int], finish_reason: str | None) -> None:
        """These ids of ``choice`` are delivered."""
        so_far = self._choices.get(choice)
        if so_far is None:
            so_far = self._choices[choice] = ChoiceSoFar()
        so_far.ids.extend(ids)
        self.tokens += len(ids)
        if finish_reason is not None:
            so_far.finish_reason = finish_reason

    def emitted_one(self, choice: int, token: int) -> None:
        """This id of ``choice`` is delivered: the same, for the usual case."""
        so_far = self._choices.get(choice)
        if so_far is None:
            so_far = self._choices[choice] = ChoiceSoFar()
        so_far.ids.append(token)
        self.tokens += 1

    @property
    def begun(self) -> bool:
        """Whether any id or end was delivered, so that only the same model revision can go on."""
        return self.tokens > 0 or any(choice.finish_reason for choice in self._choices.values())

    @property
    def visible(self) -> bool:
        """Whether the client has got anything at all."""
        return self.begun or self.untold_text or bool(self.greeted)

    def delivered(self) -> Delivered:
        """The facts by which ``policies.continuation`` decides."""
        finished = sum(choice.finish_reason is not None for choice in self._choices.values())
        return Delivered(
            ids=self.begun,
            journalled=self.model_revision is not None,
            text=self.untold_text,
            unfinished_choices=self._expected - finished,
            usage_due=self._wants_usage and not self.usage_delivered,
        )

    def resume(self) -> Resume | None:
        """What to send along to the next group; None while no id was delivered.

        A choice is listed when its first event (the role) or an id was delivered: the worker greets the others.
        """
        if not self.begun:
            return None
        listed = sorted(self._choices.keys() | self.greeted)
        choices = [self._resumed(index) for index in listed]
        return Resume(self.prompt.tolist(), self.model_revision or "", choices)

    def _resumed(self, index: int) -> ResumedChoice:
        so_far = self._choices.get(index) or ChoiceSoFar()
        return ResumedChoice(index, so_far.ids.tolist(), so_far.finish_reason)
