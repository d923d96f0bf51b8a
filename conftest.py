"""Settings of the whole test run."""

import asyncio

from hypothesis import settings

# Two shared cores make single examples slow now and then; a timing must never decide a test.
settings.register_profile("bireme", deadline=None)
settings.load_profile("bireme")


def pytest_configure() -> None:
    """Say that no event loop is set: pytest-asyncio would otherwise make one to restore and never close it."""
    asyncio.set_event_loop(None)
