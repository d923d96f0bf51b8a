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

    @property
    def cached_tokens(self) -> int:
        """A token is cached when no choice had to compute it."""
        return min(min(self.cached.values(), default=0), self.prompt_tokens)

    def as_object(self) -> dict[str, Any]:
        """The `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
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
            Choice(index, generation, service.text, at_start=at_start) for index in range(generation.draws)
        ]
        self.usage = Usage(sum(len(prompt) for prompt in generation.prompts))
        self.model_revision = generation.revision or ""

    async def batches(self) -> AsyncIterator[Batch]:
        """Submit every choice that has not ended and yield what comes until all have.

        Raises:
            ApiError: refused, failed, or given back.
        """
        batch, running = await self._replay()
        if not running:
            yield batch
            return
        with Call(self._service.link) as call:
            for index, (outputs, mask) in running.items():
                self._submit(call, index, outputs, mask)
            while running:
                error = None
                for index, event in await call.events():
                    error = await self._take(call, batch, index, event)
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

    async def _replay(self) -> tuple[Batch, dict[int, tuple[Sequence[int], bytes]]]:
        """Bring the choices to where the last attempt broke off: what only lacked its end, and what must run."""
        batch: Batch = []
        running: dict[int, tuple[Sequence[int], bytes]] = {}
        for choice in self._choices:
            resumed = self._generation.resumed.get(choice.index)
            outputs = [] if resumed is None else resumed.output_token_ids
            piece = await self._generation.form.step(choice.push, outputs)
            self.usage.completion_tokens += len(piece.ids)
            if resumed is not None and resumed.finish_reason is not None:
                continue
            if choice.finish:
                batch.append((choice, Piece([], "", [], choice.finish)))
            elif (mask := await self._generation.form.step(choice.mask) if choice.bound else b"") is None:
                ended = choice.end_of_form()
                batch.append((choice, Piece([], "", [], choice.finish) if outputs else ended))
            else:
                running[choice.index] = outputs, mask
        return batch, running

    def _submit(self, call: Call, index: int, outputs: Sequence[int], mask: bytes) -> None:
        generation = self._generation
        call.submit(
            index,
            request_id=generation.request_id,
            prompt=generation.prompt_of(index),
            outputs=outputs,
            sampling=generation.sampling_of(index),
            max_tokens=generation.room_of(index),
            priority=generation.priority,
            journalled=generation.journal,
            text=self._service.text_name,
            adapter=generation.adapter,
            speculate=generation.speculate,
            mask=mask,
        )

    async def _take(self, call: Call, batch: Batch, index: int, event: Event) -> ApiError | None:
        match event:
            case Tokens():
                return await self._take_tokens(call, batch, self._choices[index], event)
            case Refused():
                return refusal(event.code, event.message, event.retry_after_s)
            case Lost():
                return HandedOver(event.reason, retry_after_s=RETRY_AFTER_S)
            case Accepted():
                return None

    async def _take_tokens(self, call: Call, batch: Batch, choice: Choice, tokens: Tokens) -> ApiError | None:
        if choice.finish:  # its stop string was found before the engine heard of it
            return None
        choice.scored_prompt.extend(tokens.prompt)
        piece = await self._generation.form.step(choice.push, unpack_ids(tokens.ids), tokens.logprobs)
        self.usage.completion_tokens += len(piece.ids)
        if piece.ids:
            self.usage.cached.setdefault(choice.index, tokens.cached)
        if tokens.finish in ("stop", "length") and not choice.finish:
            piece = piece.then(choice.end(tokens.finish))
        if piece.ids and not (tokens.finish or piece.finish):
            piece = await self._bind(call, choice, piece)
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

    async def _bind(self, call: Call, choice: Choice, piece: Piece) -> Piece:
        """Tell the engine what a bound choice may draw next, or end it where nothing may follow."""
        if not choice.bound:
            return piece
        mask = await self._generation.form.step(choice.mask)
        if mask is None:
            return piece.then(choice.end_of_form())
        call.allow(choice.index, choice.count, mask)
        return piece
