"""`bireme profile` of groups of GPUs over random weights: the text of each, and summary and picture as files.

The ranks are the worker's own and record as they do when they serve; this program plays their supervisors.

    python benchmarks/gpu/profiled.py --shape llama70b --layouts 4x1,2x2 --rows 1,64 --steps 30 --output $OUT/profile
"""

import argparse
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.gpu.drive import Formed
from benchmarks.gpu.formed import RANDOM, running, until_lost
from benchmarks.gpu.shapes import SHAPES, quantized
from benchmarks.gpu.weights import describe
from benchmarks.gpu.workloads import fixed
from bireme.cli.profile_picture import picture
from bireme.cli.profile_text import told
from bireme.wire.control import Profile, Profiled
from bireme.wire.profile import MOST_SECONDS, ProfileReport, RankProfile

PATIENCE_S = 120.0
CONTEXT = 500
LONG = 4000
"""Tokens that keep a request running until the profile has ended."""


def profile(engine: Formed, name: str, steps: int) -> ProfileReport:
    """As the leader does it."""
    group = engine.group
    ranks = [group.ranks[place] for place in sorted(group.ranks)]
    reports: list[RankProfile] = []
    for phase in ("Prepare", "Record"):
        for one in ranks:
            one.channel.send(Profile(name, group.epoch, phase, steps, MOST_SECONDS))
        for one in ranks:
            said = one.wait_for(Profiled, PATIENCE_S)
            assert not said.error, said.error
            reports += [said.report] if said.report is not None else []
    return ProfileReport(1, name, "random", group.epoch, "1", tuple(reports))


def profiled(config: Mapping[str, Any], layout: tuple[int, int], rows: int, steps: int) -> ProfileReport:
    """The profile of a group that computes ``rows`` requests at a time."""
    with tempfile.TemporaryDirectory() as scratch:
        source = describe(config, Path(scratch))
        with running(source, *layout, module=RANDOM) as (engine, _):
            return under_load(engine, config["vocab_size"], rows, steps)


def under_load(engine: Formed, vocabulary: int, rows: int, steps: int) -> ProfileReport:
    """The profile of a group while it computes ``rows`` requests at a time; the epoch ends with it."""
    load = threading.Thread(target=until_lost, args=(engine, fixed(vocabulary, rows, CONTEXT, LONG)), daemon=True)
    load.start()
    report = profile(engine, f"{rows:08x}", steps)
    engine.group.end("profiled")
    load.join()
    return report


def keep(report: ProfileReport, stem: Path) -> None:
    """Summary and picture."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{stem}.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    Path(f"{stem}.svg").write_text(picture(report))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama8b")
    parser.add_argument("--quantization", default="none", help="none, int8, int4 or fp8")
    parser.add_argument("--layouts", default="2x1", help="tensor x pipeline, several by commas")
    parser.add_argument("--rows", default="1,64", help="requests at a time")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--output", type=Path, default=Path("profile"))
    options = parser.parse_args()
    config = quantized(SHAPES[options.shape], options.quantization)
    for layout in options.layouts.split(","):
        tensor, stages = map(int, layout.split("x"))
        for rows in map(int, options.rows.split(",")):
            report = profiled(config, (tensor, stages), rows, options.steps)
            keep(report, options.output / f"{options.shape}-{layout}-{rows}")
            print(f"== {options.shape} {layout}, {rows} at a time\n{told(report)}", flush=True)


if __name__ == "__main__":
    main()
