"""Streams of the official client that run in a thread while a test breaks something, and are judged afterwards."""

import asyncio
import threading
import time
from dataclasses import dataclass, field
from typing import Self

import httpx

from bireme.wire.plan import Sampling
from tests.controlplane.polling import eventually
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


class Steady:
    """Clients that ask one short question after another, as long as it is entered; whatever fails is kept."""

    def __init__(self, url: str, clients: int = 3, max_tokens: int = 24) -> None:
        self._url = url
        self._max_tokens = max_tokens
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(one,), daemon=True) for one in range(clients)]
        self.answered = 0
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(300)

    def _ask(self, number: int) -> None:
        with httpx.Client(base_url=self._url, timeout=240) as client:
            while not self._stop.is_set():
                try:
                    self._judge(client.post("/v1/chat/completions", json=self._question(number)))
                except httpx.HTTPError as error:
                    self.failures.append(f"{time.strftime('%X')} {type(error).__name__}: {error}")
                    time.sleep(0.5)  # a refused connection comes back at once

    def _question(self, number: int) -> dict[str, object]:
        said = {"role": "user", "content": PROMPTS[(number + self.answered) % len(PROMPTS)]}
        wanted = {"max_tokens": self._max_tokens, "ignore_eos": True, "temperature": 0}
        return {"model": "smollm2-135m-instruct", "messages": [said], **wanted}

    def _judge(self, answer: httpx.Response) -> None:
        if answer.status_code != 200:
            self.failures.append(f"{time.strftime('%X')} {answer.status_code}: {answer.text[:300]}")
            time.sleep(0.5)  # as above
        elif answer.json()["usage"]["completion_tokens"] != self._max_tokens:
            self.failures.append(f"cut short: {answer.text[:300]}")
        else:
            self.answered += 1

    def check(self) -> None:
        """Every request was answered in full, and there were some."""
        assert not self.failures, f"{len(self.failures)} failed beside {self.answered}: {self.failures[:5]}"
        assert self.answered > 0
