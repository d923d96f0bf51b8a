"""Requests to a router, one after the other from a few clients, for as long as a test does something else."""

import threading
from typing import Any, Self

import httpx


class Load:
    """Asks from `__enter__` to `__exit__`; ``failed`` has what was not answered with 200."""

    def __init__(self, url: str, body: dict[str, Any], clients: int = 2) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._body = body
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]
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

    def _ask(self) -> None:
        with httpx.Client(timeout=120, trust_env=False) as client:
            while not self._stop.is_set():
                try:
                    response = client.post(self._url, json=self._body)
                except httpx.HTTPError as error:
                    self.failed.append(repr(error))
                    continue
                if response.status_code == 200:
                    self.answered += 1
                else:
                    self.failed.append(f"{response.status_code} {response.text}")
