"""What a profile's shares are as figures of a line, and `bireme profile` as a user calls it."""

import os
import statistics
import subprocess
import sys

from benchmarks.gpu.job import Bench
from bireme.names import Env
from bireme.wire.profile import ProfileReport, Use, read_report
from tests.support.deployment import Deployment

STEPS = 30
PATIENCE_S = 150.0


def tell_shares(bench: Bench, prefix: str, report: ProfileReport) -> None:
    """Percent of the window, mean of all ranks."""
    assert not any(one.unseen for one in report.ranks), "nothing of the GPU was recorded"
    uses = {
        "compute": (Use.COMPUTE, Use.SAMPLING),
        "exchange": (Use.EXCHANGE,),
        "bubble": (Use.WAITS_STAGE, Use.WAITS_PLAN),
        "gap": (Use.GAP,),
    }
    for name, parts in uses.items():
        shares = [sum(one.share(use) for use in parts) for one in report.ranks]
        note = f"{report.ranks[0].steps} steps" if name == "compute" else ""
        bench.measured(f"{prefix}.{name}", 100 * statistics.mean(shares), note)


def profiled(bench: Bench, deployment: Deployment) -> ProfileReport:
    """`bireme profile`; its files stay in ``bench.keep``."""
    folder = bench.keep / "profile"
    command = [sys.executable, "-m", "bireme.cli.main", "profile", deployment.name]
    done = subprocess.run(
        [*command, "--steps", str(STEPS), "--output", str(folder)],
        env={**os.environ, Env.RUN_DIR: str(deployment.run_dir)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    print(done.stdout, done.stderr, flush=True)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-400:]}"
    return read_report((folder / "summary.json").read_bytes())
