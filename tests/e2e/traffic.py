"""Clients that go on while a test breaks something, and are judged afterwards: long streams, and short questions."""

import asyncio
import threading
from dataclasses import dataclass, field

from bireme.wire.plan import Sampling
from tests.controlplane.polling import eventually
from tests.support.load import Load
from tests.support.streams import PROMPTS, Delivery, run_all


def eight() -> list[Delivery]:
    """Eight requests, half greedy and half seeded."""
    return [
        Delivery(prompt, Sampling() if number % 2 else Sampling(temperature=0.9, seed=1000 + number))
        for number, prompt in enumerate(PROMPTS)
    ]


@dataclass
class Traffic:
    """Runs ``wanted`` at once from the start; `finish` waits for the last and raises what any of them raised."""

    url: str
    max_tokens: int
    wanted: list[Delivery] = field(default_factory=eight)
    _total: int = 0
    _failure: BaseException | None = None
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(run_all(self.url, self.wanted, self.max_tokens, self._count))
        except BaseException as error:  # noqa: BLE001  # whatever it is, the test's own thread raises it
            self._failure = error

    def _count(self, total: int) -> None:
        self._total = total

    @property
    def over(self) -> bool:
        """Whether all answers have ended."""
        assert self._thread is not None
        return not self._thread.is_alive()

    def await_tokens(self, total: int) -> None:
        """Wait until so many ids have come in all."""
        eventually(lambda: self._total >= total or self.over, within=120)
        assert not self.over, f"the streams ended before the fault: {self._failure}"

    def finish(self, within: float = 400) -> list[Delivery]:
        """Wait for all answers; each must be whole, under one id."""
        assert self._thread is not None
        self._thread.join(within)
        assert self.over, f"{self._total} ids after {within:.0f} s"
        if self._failure is not None:
            raise self._failure
        for item in self.wanted:
            assert item.finish_reason == "length", item.label
            assert len(item.ids) == self.max_tokens, item.label
            assert len(item.response_ids) == 1, item.label
        return self.wanted


def steady(url: str) -> Load:
    """Three clients that ask one short question after another, as long as it is entered."""
    wanted = {"model": "smollm2-135m-instruct", "max_tokens": 24, "ignore_eos": True, "temperature": 0}
    return Load(url, *({**wanted, "messages": [{"role": "user", "content": one}]} for one in PROMPTS), clients=3)
