"""List what an image is made of, as SPDX 2.3: `make sbom`.

Runs inside the image with the image's own Python, so it lists what is there and not what was asked for: Debian's
packages and the Python distributions of /opt/bireme.
"""

import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

_STATUS: Final = Path("/var/lib/dpkg/status")
_RELEASE: Final = Path("/etc/os-release")


def debian() -> Iterator[dict[str, Any]]:
    """Debian's packages that are installed."""
    for paragraph in _STATUS.read_text(encoding="utf-8").split("\n\n") if _STATUS.exists() else ():
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
        if "installed" in fields.get("Status", "").split():
            name, version = fields["Package"], fields["Version"]
            yield _package(
                "deb", f"debian/{name}", version, f"?arch={fields.get('Architecture', 'all')}", "NOASSERTION"
            )


def python() -> Iterator[dict[str, Any]]:
    """The Python distributions of the virtual environment."""
    paths = [str(path) for path in Path("/opt/bireme/lib").glob("python3*/site-packages")]
    for one in sorted(distributions(path=paths), key=lambda found: found.name.lower()):
        licence = str(one.metadata.json.get("license_expression") or "NOASSERTION")
        yield _package("pypi", re.sub(r"[-_.]+", "-", one.name).lower(), one.version, "", licence)


def _package(kind: str, name: str, version: str, qualifiers: str, licence: str) -> dict[str, Any]:
    reference = f"pkg:{kind}/{name}@{version}{qualifiers}"
    return {
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{kind}-{name}-{version}"),
        "name": name.rpartition("/")[2],
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": reference}
        ],
    }


def document(name: str) -> dict[str, Any]:
    """The whole document about the image ``name``."""
    packages = [*debian(), *python()]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://bireme.dev/sbom/{name.replace(':', '/')}",
        "creationInfo": {
            "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: bireme-sbom"],
            "comment": _RELEASE.read_text(encoding="utf-8") if _RELEASE.exists() else "",
        },
        "packages": packages,
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": one["SPDXID"]}
            for one in packages
        ],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(document(sys.argv[1]), indent=1) + "\n")
