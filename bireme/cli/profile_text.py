"""A profile as text: where each rank's time went, the host's part of it, what took longest, and what that means."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Final

from bireme.wire.profile import ProfileReport, RankProfile, Use

HEADS: Final = {
    Use.COMPUTE: "COMPUTE",
    Use.SAMPLING: "SAMPLING",
    Use.EXCHANGE: "EXCHANGE",
    Use.WAITS_STAGE: "WAITS STAGE",
    Use.WAITS_PLAN: "WAITS PLAN",
    Use.GAP: "GAPS",
}
MEANING: Final = {
    Use.COMPUTE: "kernels or operators of the model",
    Use.SAMPLING: "penalties, filters, noise and the draw",
    Use.EXCHANGE: "sums over ranks, and sending to the next stage; a rank that waits for a slower one is in here too",
    Use.WAITS_STAGE: "bubble: for hidden states of the stage before, or on stage 0 for drawn tokens",
    Use.WAITS_PLAN: "bubble: no plan at hand, because no request or no free slot of the pipeline is there",
    Use.GAP: "the device idles while its host prepares, launches or collects a step",
}
_ADVICE: Final = {
    Use.SAMPLING: "sampling: penalties, logit_bias, logprobs, top-k and top-p cost more than plain temperature",
    Use.EXCHANGE: "sums and transfers: compare COMPUTE of its ranks (an uneven one makes others wait), then the links",
    Use.WAITS_STAGE: (
        "waiting for another stage: more requests at a time fill a pipeline; if one stage never waits, it is the slow "
        "one, and parallelism.stageLayers moves layers away from it"
    ),
    Use.WAITS_PLAN: "waiting for a plan: it could serve more requests, or its pipeline had too few of them",
    Use.GAP: "gaps: its host is slower than the device; larger batches help, or fewer processes on its cores",
}
_NOTABLE: Final = 0.15
_TOP: Final = 6
_PARTS: Final = (
    ("plan", ("bireme.plan",)),
    ("launch", ("bireme.launch",)),
    ("embed", ("bireme.embed",)),
    ("layers", ("bireme.layers",)),
    ("head", ("bireme.head",)),
    ("sampling", ("bireme.sampling",)),
    ("sum+gather", ("bireme.exchange.sum", "bireme.exchange.gather")),
    ("send", ("bireme.exchange.send",)),
    ("receive", ("bireme.exchange.receive", "bireme.exchange.tokens")),
    ("collect", ("bireme.collect",)),
    ("wait", ("bireme.wait",)),
)


def told(report: ProfileReport) -> str:
    """Everything."""
    return "\n\n".join(
        [_head(report), _shares(report.ranks), _key(), _host(report.ranks), *_tops(report), _words(report)]
    )


def _head(report: ProfileReport) -> str:
    first = report.ranks[0]
    did = f"{first.tokens} tokens computed, {first.sampled} drawn"
    lines = [
        f"Profile {report.id} of group {report.group}, epoch {report.epoch}, model revision {report.model_revision}.",
        f"Stage 0 rank 0 on {first.device}: {first.steps} steps in {first.seconds * 1e3:.1f} ms; {did}.",
    ]
    limited = [f"stage {one.stage} rank {one.rank} after {one.steps} steps" for one in report.ranks if one.limited]
    if limited:
        lines.append(f"Ended at the limit of events: {', '.join(limited)}.")
    unseen = [f"stage {one.stage} rank {one.rank}" for one in report.ranks if one.unseen]
    if unseen:
        lines.append(
            f"WARNING: nothing of the GPU was recorded on {', '.join(unseen)}, though it computed: its shares "
            "can't be told. CUPTI may be in use by another tool, or lost its events: "
            "restart the rank and profile again."
        )
    return "\n".join(lines)


def _shares(ranks: Sequence[RankProfile]) -> str:
    heads = ("STAGE", "RANK", "STEPS", "TOKENS", "MS/STEP", *HEADS.values())
    rows = [
        (
            one.stage,
            one.rank,
            one.steps,
            one.tokens,
            f"{_per_step(one):.2f}",
            *("?" if one.unseen else f"{one.share(use):.1%}" for use in HEADS),
        )
        for one in ranks
    ]
    return _table(heads, rows)


def _key() -> str:
    width = max(map(len, HEADS.values()))
    return "\n".join(f"{HEADS[use]:<{width}}  {meaning}" for use, meaning in MEANING.items())


def _host(ranks: Sequence[RankProfile]) -> str:
    shown = [(head, names) for head, names in _PARTS if any(name in one.parts for one in ranks for name in names)]
    rows = [(one.stage, one.rank, *(f"{_part(one, names):.3f}" for _, names in shown)) for one in ranks]
    return "The host, ms a step in each part:\n" + _table(("STAGE", "RANK", *(head.upper() for head, _ in shown)), rows)


def _tops(report: ProfileReport) -> Iterable[str]:
    """Of rank 0 of each stage: the other ranks do the same. All are in the JSON."""
    for one in report.ranks:
        if one.rank == 0:
            rows = [
                (f"{top.seconds / one.seconds:.1%}", f"{top.seconds / one.steps * 1e3:.3f}", top.calls, top.name)
                for top in one.top[:_TOP]
            ]
            yield f"Longest on stage {one.stage} rank 0:\n" + _table(
                ("SHARE", "MS/STEP", "CALLS", "NAME"), rows, left=1
            )


def _words(report: ProfileReport) -> str:
    lines = []
    for stage in sorted({one.stage for one in report.ranks}):
        mine = [one for one in report.ranks if one.stage == stage and not one.unseen]
        if not mine:
            continue
        found = {use: fmean(one.share(use) for one in mine) for use in _ADVICE}
        for use, share in sorted(found.items(), key=lambda item: -item[1]):
            if share >= _NOTABLE:
                lines.append(f"Stage {stage} spends {share:.0%} on {_ADVICE[use]}.")
    if any(one.unseen for one in report.ranks):
        return "\n".join(lines) or "What takes the time can't be told without the GPU's events."
    return "\n".join(lines) or "Nothing but compute takes a notable share."


def _per_step(one: RankProfile) -> float:
    return one.seconds / one.steps * 1e3


def _part(one: RankProfile, names: Iterable[str]) -> float:
    return sum(one.parts.get(name, 0.0) for name in names) / one.steps * 1e3


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]], left: int = 0) -> str:
    """Right-aligned but for the last ``left`` columns."""
    cells = [list(map(str, row)) for row in (heads, *rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
    edge = len(heads) - left
    lines = (
        "  ".join(
            cell.rjust(width) if at < edge else cell for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)
