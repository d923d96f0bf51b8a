"""One request from submission to its last token, as batches of pieces: the part that all routes and both forms share.

A batch is whatever had arrived by the time the consumer asked again. Errors come as ``ApiError`` from the iteration;
whether they become a status code or the end of a stream depends on what was sent by then.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bireme.wire.plan import unpack_ids
from bireme.wire.requests import Accepted, Refused, Tokens
from bireme_worker.http.choice import Choice, Piece
from bireme_worker.http.coordinator_link import RETRY_AFTER_S, Call, Event, Lost
from bireme_worker.http.errors import ApiError, EngineFailed, HandedOver, refusal
from bireme_worker.http.generation import Generation, wrong_revision
from bireme_worker.http.service import Service


@dataclass
class Usage:
    """OpenAI's token counts of a whole request, over all attempts."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached: dict[int, int] = field(default_factory=dict)

    def as_object(self) -> dict[str, Any]:
        """The `usage` object. A token is cached when no choice had to compute it."""
        cached = min(self.cached.values(), default=0)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": min(cached, self.prompt_tokens)},
        }


REVISION_JOINT: Final = "+"
"""Between the revisions of an answer that a reload in mode `restart` went through."""
Batch = list[tuple[Choice, Piece]]


class Answer:
    """The choices of one request. After the first batch ``model_revision`` says whose weights drew them."""

    def __init__(self, service: Service, generation: Generation, *, at_start: bool) -> None:
        self._service = service
        self._generation = generation
        self._choices = [
            Choice(index, generation, service.text, at_start=at_start) for index in range(generation.choices)
        ]
        self.usage = Usage(len(generation.prompt))
        self.model_revision = generation.revision or ""

    async def batches(self) -> AsyncIterator[Batch]:
        """Submit every choice that has not ended and yield what comes until all have.

        Raises:
            ApiError: refused, failed, or given back.
        """
        batch, running = self._replay()
        if not running:
            yield batch
            return
        with Call(self._service.link) as call:
            for index, outputs in running.items():
                self._submit(call, index, outputs)
            while running:
                error = None
                for index, event in await call.events():
                    error = self._take(call, batch, index, event)
                    if error is not None:
                        break
                    if self._choices[index].finish:
                        running.pop(index, None)
                if batch and call.revisions:
                    self._check_revision(call)
                    yield batch
                    batch = []
                if error is not None:
                    raise error

    def _replay(self) -> tuple[Batch, dict[int, Sequence[int]]]:
        """Bring the choices to where the last attempt broke off: what only lacked its end, and what must run."""
        batch: Batch = []
        running: dict[int, Sequence[int]] = {}
        for choice in self._choices:
            resumed = self._generation.resumed.get(choice.index)
            outputs = [] if resumed is None else resumed.output_token_ids
            piece = choice.push(outputs)
            self.usage.completion_tokens += len(piece.ids)
            if resumed is not None and resumed.finish_reason is not None:
                continue
            if choice.finish:
                batch.append((choice, Piece([], "", [], choice.finish)))
            else:
                running[choice.index] = outputs
        return batch, running

    def _submit(self, call: Call, index: int, outputs: Sequence[int]) -> None:
        generation = self._generation
        call.submit(
            index,
            request_id=generation.request_id,
            prompt=generation.prompt,
            outputs=outputs,
            sampling=generation.sampling_of(index),
            max_tokens=generation.max_tokens,
            priority=generation.priority,
            journalled=generation.journal,
            text=self._service.text_name,
        )

    def _take(self, call: Call, batch: Batch, index: int, event: Event) -> ApiError | None:
        match event:
            case Tokens():
                return self._take_tokens(call, batch, self._choices[index], event)
            case Refused():
                return refusal(event.code, event.message, event.retry_after_s)
            case Lost():
                return HandedOver(event.reason, retry_after_s=RETRY_AFTER_S)
            case Accepted():
                return None

    def _take_tokens(self, call: Call, batch: Batch, choice: Choice, tokens: Tokens) -> ApiError | None:
        if choice.finish:  # its stop string was found before the engine heard of it
            return None
        piece = choice.push(unpack_ids(tokens.ids), tokens.logprobs)
        self.usage.completion_tokens += len(piece.ids)
        self.usage.cached.setdefault(choice.index, tokens.cached)
        if tokens.finish in ("stop", "length") and not choice.finish:
            ended = choice.end(tokens.finish)
            piece = Piece(piece.ids, piece.text + ended.text, piece.scored, ended.finish)
        if piece.ids or piece.finish:
            batch.append((choice, piece))
        if choice.finish:
            call.cancel(choice.index)
        elif tokens.finish == "error":
            return EngineFailed(tokens.message)
        elif tokens.finish == "handover":
            return HandedOver(tokens.message, retry_after_s=RETRY_AFTER_S)
        return None

    def _check_revision(self, call: Call) -> None:
        """A reload may have come between the resume and its first token. One that came later names both revisions."""
        first = call.revisions[0]
        if self._generation.revision is not None and first != self._generation.revision:
            raise wrong_revision(self._generation.revision, first)
        self.model_revision = REVISION_JOINT.join(call.revisions)
