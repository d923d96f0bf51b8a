"""`python -m bireme_operator.checkup`, what `helm test` runs: does an operator act, does the API take work?

It changes nothing: the deployment that it hands in is judged by the server and not kept.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final

from bireme.names import GROUP, KIND, VERSION
from bireme_operator.kube.client import Kube, connected
from bireme_operator.kube.errors import KubeError, NotFound
from bireme_operator.kube.resources import DEPLOYMENTS, LEASES

_LOOK_S: Final = 0.5


class Unwell(Exception):
    """What is wrong, and what to do about it."""


async def check(kube: Kube, options: argparse.Namespace) -> None:
    """Return when all is well.

    Raises:
        Unwell: it is not.
    """
    if not await kube.serves(DEPLOYMENTS):
        raise Unwell(f"the server knows no {DEPLOYMENTS.plural}: kubectl apply -f crds/")
    print("ok: the server knows InferenceDeployments")
    try:
        await kube.create(_sample(options.namespace), dry_run=True, strict=True)
    except KubeError as error:
        raise Unwell(f"the server refuses an InferenceDeployment in {options.namespace}: {error}") from error
    print(f"ok: it would take one in {options.namespace}")
    # The clocks need not agree: a Lease is held when it is renewed while we look.
    first = await _lease(kube, options)
    for _ in range(int(options.lease_seconds / _LOOK_S)):
        await asyncio.sleep(_LOOK_S)
        now = await _lease(kube, options)
        if now and first and now["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]:
            print(f"ok: {now['spec'].get('holderIdentity')} holds the Lease and renews it")
            return
        first = first or now
    raise Unwell(
        f"nobody has renewed the Lease {options.lease_namespace}/{options.lease_name} for {options.lease_seconds} s: "
        "see the operator's log"
    )


async def _lease(kube: Kube, options: argparse.Namespace) -> dict[str, Any] | None:
    try:
        return await kube.get(LEASES, options.lease_namespace, options.lease_name)
    except NotFound:
        return None


def _sample(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": "bireme-checkup", "namespace": namespace},
        "spec": {"model": {"source": {"path": "/models/none"}, "revision": "1"}, "parallelism": {"pipeline": 2}},
    }


async def _run(options: argparse.Namespace) -> int:
    try:
        async with connected() as kube:
            await check(kube, options)
    except (Unwell, KubeError) as error:
        print(f"not well: {error}", file=sys.stderr)
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was looked at; the exit code is 1 when something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m bireme_operator.checkup", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--namespace", required=True, help="where the server is asked to judge an InferenceDeployment")
    parser.add_argument("--lease-namespace", required=True)
    parser.add_argument("--lease-name", required=True)
    parser.add_argument("--lease-seconds", type=int, default=15, help="how long the Lease is watched (%(default)s)")
    return asyncio.run(_run(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
