"""What the operator starts routers with is what a router understands: in a cluster, and by `bireme up`."""

from pathlib import Path
from typing import Any

import yaml

from bireme.api import refused_locally
from bireme.api.document import load
from bireme_operator.local.router import router_command
from bireme_operator.local.rundir import RunDir
from bireme_operator.render.owned import Owner
from bireme_operator.render.router import render_router
from bireme_router.settings import Settings, read_settings

DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "bireme.dev/v1alpha1",
    "kind": "InferenceDeployment",
    "metadata": {"name": "demo", "namespace": "space"},
    "spec": {"model": {"source": {"path": "/models/m"}, "revision": "1"}},
}
FULL: dict[str, Any] = {
    "replicas": 3,
    "retry": {"crossRevision": "Allow"},
    "apiKeysSecretRef": {"name": "keys", "key": "keys.json"},
    "rateLimitsSecretRef": {"name": "limits", "key": "limits.json"},
    "hedgeAfterMilliseconds": 1500,
    "tls": {"secretName": "certificate"},
}


def deployment(**router: Any) -> Any:
    return load(yaml.safe_dump({**DEPLOYMENT, "spec": {**DEPLOYMENT["spec"], "router": router}}))


def rendered(**router: Any) -> dict[str, Any]:
    made = render_router(Owner("demo", "space", "u"), deployment(**router).spec, image="i", token_secret="t")
    return dict(next(one for one in made if one["kind"] == "Deployment")["spec"])


def test_every_rendered_flag_is_understood_and_its_secret_mounted() -> None:
    spec = rendered(**FULL)
    (container,) = spec["template"]["spec"]["containers"]
    settings = read_settings(container["args"])
    assert spec["replicas"] == 3
    assert (settings.pods, settings.cross_revision, settings.hedge_after_s) == ("space/demo", True, 1.5)
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {
        volume["name"]: volume.get("secret", {}).get("secretName") for volume in spec["template"]["spec"]["volumes"]
    }
    for path, secret in (
        (settings.api_keys, "keys"), (settings.limits, "limits"), (settings.tls_cert, "certificate"),
        (settings.tls_key, "certificate"), (settings.tokens / "0", "t"),
    ):  # fmt: skip
        assert path is not None
        assert volumes[mounts[str(path.parent)]] == secret
    assert settings.routes.parent == Path("/bireme/routes")
    assert container["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_a_plain_deployment_asks_for_nothing_more() -> None:
    settings = read_settings(rendered()["template"]["spec"]["containers"][0]["args"])
    assert (settings.api_keys, settings.limits, settings.tls_cert, settings.hedge_after_s) == (None, None, None, 0.0)
    assert not settings.cross_revision


def test_locally_replicas_are_processes_and_secrets_are_refused_by_name(tmp_path: Path) -> None:
    plain = deployment(replicas=2, retry={"crossRevision": "Allow"}, hedgeAfterMilliseconds=200)
    assert refused_locally(plain) == []
    command = router_command(RunDir(tmp_path), "127.0.0.1", 8080, plain.spec.router)
    settings = read_settings(command[3:])
    assert (settings.processes, settings.cross_revision, settings.hedge_after_s) == (2, True, 0.2)
    refusals = refused_locally(deployment(**FULL | {"replicas": 0}))
    for name in ("replicas", "apiKeysSecretRef", "rateLimitsSecretRef", "tls"):
        assert any(f"spec.router.{name}:" in one for one in refusals)
    assert read_settings(["--routes", "f"]) == Settings(routes=Path("f"))
