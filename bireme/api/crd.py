"""Write the CustomResourceDefinition that the API models describe: ``python -m bireme.api.crd [--check]``.

The models are the one source: their bounds, defaults, rules and docstrings become the schema that the API server
enforces and `kubectl explain` shows. It is written twice, for `kubectl apply -f crds/` and as a template of the Helm
chart; docs/api.md says the same to readers. The output is deterministic; tests compare the committed files.
"""

import argparse
import sys
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final

from bireme.api.deployment import InferenceDeployment
from bireme.api.page import PAGE, render_page
from bireme.api.structural import Schema, structural_schema
from bireme.names import GROUP, KIND, VERSION

PLURAL: Final = "inferencedeployments"
COMMITTED: Final = Path("crds") / f"{GROUP}_{PLURAL}.yaml"
CHART: Final = Path("charts") / "bireme" / "templates" / "crds" / COMMITTED.name
_SOURCE: Final = "Written by `python -m bireme.api.crd` from bireme/api. Change the models, not this file."
_HEADER: Final = f"# {_SOURCE}\n"
_CHART_HEAD: Final = f"""\
{{{{- /* {_SOURCE} */ -}}}}
{{{{- if .Values.crds.enabled }}}}
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: {PLURAL}.{GROUP}
  labels:
    {{{{- include "bireme.labels" . | nindent 4 }}}}
  {{{{- if .Values.crds.keep }}}}
  annotations:
    helm.sh/resource-policy: keep
  {{{{- end }}}}
"""

# The last number is the priority. 0 is not written, the server drops it: `kubectl apply` would see a change for ever.
_COLUMNS: Final = (
    ("Ready", "integer", ".status.readyReplicas", "Groups that serve.", 0),
    ("Groups", "integer", ".spec.replicas", "Groups that are wanted.", 0),
    ("Restarts", "integer", ".status.restarts", "Restarts of the groups' parts.", 0),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the object was made.", 0),
    ("Model", "string", ".spec.model.name", "Model name, empty when it is the object's own.", 1),
    ("Topology", "string", ".status.topology", "Tensor x pipeline of a group.", 1),
    ("Revision", "string", ".status.updateRevision", "Pod revision that is wanted.", 1),
)


def definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition as a plain object."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "bireme"}},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["infd"],
                "categories": ["bireme"],
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def render() -> str:
    """Return the text of the committed file."""
    import yaml  # noqa: PLC0415  # only the extras that read and write files carry it

    class Dumper(yaml.SafeDumper):
        """YAML without anchors, which a reader of a CRD does not expect."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
            return True

    return _HEADER + yaml.dump(definition(), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def render_template() -> str:
    """Return the text of the chart's copy: the same spec, with the labels and switches of the chart."""
    _, spec, body = render().partition("\nspec:\n")
    literal = body.replace("{{", '{{ "{{" }}')  # braces of ours are no template
    return f"{_CHART_HEAD}{spec.lstrip()}{literal}{{{{- end }}}}\n"


def _all() -> dict[Path, str]:
    return {COMMITTED: render(), CHART: render_template(), PAGE: render_page()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or with ``--check`` compare them and print the difference."""
    parser = argparse.ArgumentParser(prog="python -m bireme.api.crd", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 with a diff if a file differs")
    parser.add_argument("--output", type=Path, help=f"the CRD, there; default all: {COMMITTED}, {CHART}, {PAGE}")
    options = parser.parse_args(arguments)
    wanted = {options.output: render()} if options.output else _all()
    if options.check:
        return max(_check(path, text) for path, text in wanted.items())
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


def _check(path: Path, wanted: str) -> int:
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    difference = unified_diff(
        found.splitlines(keepends=True), wanted.splitlines(keepends=True), str(path), "python -m bireme.api.crd"
    )
    text = "".join(difference)
    sys.stdout.write(text)
    return 1 if text else 0


def _version() -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root_schema()},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "description": text, **({"priority": rank} if rank else {})}
            for name, kind, path, text, rank in _COLUMNS
        ],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
    }


def _root_schema() -> Schema:
    """The API server owns apiVersion, kind and metadata and allows hardly a word about them."""
    schema = structural_schema(InferenceDeployment)
    schema["required"] = ["spec"]
    properties = schema["properties"]
    for name in ("apiVersion", "kind"):
        properties[name] = {"description": properties[name]["description"], "type": "string"}
    properties["metadata"] = {"type": "object"}
    return schema


if __name__ == "__main__":
    sys.exit(main())
