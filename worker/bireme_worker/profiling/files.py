"""Where a rank leaves its trace: in its pod's state directory, the newest one only."""

import re
from pathlib import Path
from typing import Final

FOLDER: Final = "profile"
Place = tuple[int, int]
"""Stage and rank."""
_ID: Final = re.compile(r"[0-9a-f]{8}")


def raw_file(state_dir: Path, profile: str, place: Place) -> Path:
    """The trace as torch writes it."""
    return state_dir / FOLDER / f"{profile}-{_name(place)}.json"


def packed_file(state_dir: Path, profile: str, place: Place) -> Path:
    """The same for reading."""
    return state_dir / FOLDER / f"{profile}-{_name(place)}.json.gz"


def is_profile(name: str) -> bool:
    """Whether ``name`` can be a profile's, so that a path made of it stays in the folder."""
    return _ID.fullmatch(name) is not None


def make_room(state_dir: Path, place: Place) -> None:
    """Make the folder and remove this rank's older traces.

    Raises:
        OSError: it can't be written there.
    """
    folder = state_dir / FOLDER
    folder.mkdir(exist_ok=True)
    for path in folder.glob(f"*-{_name(place)}.json*"):
        path.unlink(missing_ok=True)


def _name(place: Place) -> str:
    stage, rank = place
    return f"stage-{stage}-rank-{rank}"
