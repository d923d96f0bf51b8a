"""The `restricted` Pod Security level, and not one right more: our processes need none."""

from typing import Final

from bireme_operator.render.owned import Object

_NOBODY: Final = 65532

POD_SECURITY: Final[Object] = {
    "runAsNonRoot": True,
    "runAsUser": _NOBODY,
    "runAsGroup": _NOBODY,
    "fsGroup": _NOBODY,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[Object] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
