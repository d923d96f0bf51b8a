"""`best_of`: of all choices that were drawn for a prompt, those whose tokens were the likeliest on average are sent.

That is known when all have ended, so a stream brings them at its end. One that broke off while they were sent draws all
again, alike, and sends what is missing.
"""

import dataclasses
from collections.abc import AsyncIterator

from bireme_worker.http.answer import Answer, Batch
from bireme_worker.http.choice import Choice, Piece
from bireme_worker.http.generation import Generation
from bireme_worker.http.service import Service


class BestOf:
    """An answer of ``generation.kept`` choices for each prompt, of the ``drawn`` ones."""

    def __init__(self, service: Service, generation: Generation) -> None:
        self._answer = answer = Answer(service, dataclasses.replace(generation, resumed={}), at_start=False)
        self._generation = generation
        self.usage = answer.usage

    @property
    def model_revision(self) -> str:
        """Whose weights drew it."""
        return self._answer.model_revision

    async def batches(self) -> AsyncIterator[Batch]:
        """One batch, at the end.

        Raises:
            ApiError: refused, failed, or given back.
        """
        drawn: dict[int, tuple[Choice, Piece]] = {}
        async for batch in self._answer.batches():
            for choice, piece in batch:
                before = drawn.get(choice.index)
                drawn[choice.index] = choice, piece if before is None else before[1].then(piece)
        yield [pair for prompt in range(len(self._generation.prompts)) for pair in self._best(drawn, prompt)]

    def _best(self, pairs: dict[int, tuple[Choice, Piece]], prompt: int) -> Batch:
        generation = self._generation
        own = [pairs[prompt * generation.drawn + index] for index in range(generation.drawn)]
        best = sorted(own, key=lambda pair: -_likelihood(pair[1]))[: generation.kept]
        for place, (choice, _) in enumerate(best):
            choice.index = prompt * generation.kept + place
        return [(choice, piece) for choice, drawn in best if (piece := self._missing(choice, drawn)) is not None]

    def _missing(self, choice: Choice, piece: Piece) -> Piece | None:
        sent = self._generation.resumed.get(choice.index)
        if sent is None or not sent.output_token_ids:
            return piece
        return None if sent.finish_reason is not None else Piece([], "", [], piece.finish)


def _likelihood(piece: Piece) -> float:
    """The mean over the output's tokens; an echoed prompt is the same for all."""
    values = [one.logprobs.chosen for one in piece.scored if one.logprobs is not None]
    return sum(values) / max(len(values), 1)
