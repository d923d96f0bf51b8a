"""Totals for the page: what it needs to draw rates and latencies from the difference of two looks."""

from collections.abc import Sequence
from typing import Any

from bireme_router.histogram import FIRST_TOKEN_S, GAP_S, Histogram
from bireme_router.metrics import RouterMetrics


def traffic(metrics: RouterMetrics) -> dict[str, Any]:
    """Tokens so far, and histograms of time to first token and of gaps, over all model revisions."""
    revisions = metrics.revisions.values()
    first = [revision.first_token for revision in revisions]
    gaps = [revision.gap for revision in revisions]
    return {
        "tokens": sum(histogram.count for histogram in (*first, *gaps)),
        "first_token_s": _merged(FIRST_TOKEN_S, first),
        "token_gap_s": _merged(GAP_S, gaps),
        "resumes": _value(metrics.resumes),
        "resends": _value(metrics.resends),
        "disconnects": _value(metrics.disconnects),
    }


def _merged(bounds: Sequence[float], histograms: list[Histogram]) -> dict[str, Any]:
    counts = [0] * (len(bounds) + 1)
    for histogram in histograms:
        counts = [a + b for a, b in zip(counts, histogram.buckets[1], strict=True)]
    return {"bounds": bounds, "counts": counts}


def _value(counter: Any) -> int:
    return int(next(iter(counter.collect())).samples[0].value)
