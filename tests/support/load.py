"""Requests to a router, one after the other from a few clients, for as long as a test does something else."""

import threading
import time
from collections.abc import Sequence
from typing import Any, Final, Self

import httpx

Question = dict[str, Any]
"""The body of a chat completion."""

_TIMEOUT_S: Final = 240
_BREATH_S: Final = 0.1
"""Before the next request after one that failed: a refused connection comes back at once."""


class Load:
    """Asks ``questions`` in turn from `__enter__` to `__exit__`; ``failed`` has what was not answered in full.

    Whoever asks with `ignore_eos` wants all of `max_tokens`.
    """

    def __init__(self, url: str, *questions: Question, clients: int = 2) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._questions: Sequence[Question] = questions
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(one,), daemon=True) for one in range(clients)]
        self.answered = 0
        self.failed: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        """Every request was answered in full, and there were some."""
        assert not self.failed, f"{len(self.failed)} failed beside {self.answered}: {self.failed[:5]}"
        assert self.answered > 0

    def _ask(self, number: int) -> None:
        with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
            while not self._stop.is_set():
                question = self._questions[number % len(self._questions)]
                number += 1
                if trouble := self._trouble(client, question):
                    self.failed.append(f"{time.strftime('%X')} {trouble}")
                    self._stop.wait(_BREATH_S)
                else:
                    self.answered += 1

    def _trouble(self, client: httpx.Client, question: Question) -> str:
        """What is wrong with the answer to ``question``; nothing if it is right."""
        try:
            response = client.post(self._url, json=question)
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"
        if response.status_code != 200:
            return f"{response.status_code}: {response.text[:300]}"
        if question.get("ignore_eos") and response.json()["usage"]["completion_tokens"] != question["max_tokens"]:
            return f"cut short: {response.text[:300]}"
        return ""
