"""Who this stage pod is: the environment of design section 6.5, read once, validated, frozen.

Every process of the pod (supervisor, ranks, coordinator, HTTP) reads the same environment, so they can't disagree.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bireme.names import Env, Port
from bireme.wire.control import Address, Checkpoint


class BadIdentity(Exception):
    """The environment can't describe a stage pod; exit code 64."""


@dataclass(frozen=True)
class Identity:
    """One stage pod. ``kv_bytes`` and ``max_model_length`` 0 take defaults from device and model."""

    group: str
    group_index: int
    stage: int
    stages: int
    tensor: int
    stage_layers: tuple[int, ...]
    incarnation: int
    leader: str
    pod_ip: str
    token: bytes
    state_dir: Path
    revision: str
    model_name: str
    model_aliases: tuple[str, ...]
    checkpoint: Checkpoint
    dtype: str
    max_model_length: int
    max_running_requests: int
    max_batched_tokens: int
    max_queued_requests: int
    kv_bytes: int
    prefix_caching: bool
    drain_timeout_s: float
    http_processes: int
    spare_rank: bool
    device: str = "auto"
    speculation: int = 0
    adapters: tuple[tuple[str, Path], ...] = ()
    max_adapter_rank: int = 64
    spread_experts: bool = False
    quantization: str = "none"
    kv_dtype: str = "auto"
    kv_fraction: int = 0
    shard_cache: Path | None = None
    shard_cache_bytes: int = 0

    @property
    def is_leader(self) -> bool:
        """Stage 0 leads its group."""
        return self.stage == 0

    def data_address(self, rank: int) -> Address:
        """Where rank ``rank`` of this stage listens for its peers."""
        return Address(self.pod_ip, Port.DATA + rank)

    @property
    def plan_address(self) -> Address:
        """Where the coordinator listens for ranks (leader only)."""
        return Address(self.pod_ip, Port.PLAN)

    @property
    def requests_socket(self) -> Path:
        """AF_UNIX path between HTTP processes and coordinator."""
        return self.state_dir / "requests.sock"


def read_identity(environment: Mapping[str, str] = os.environ) -> Identity:
    """Read and validate the environment.

    Raises:
        BadIdentity: a variable is missing or can't be right; the message names it and the remedy.
    """
    return _Reader(environment).identity()


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def identity(self) -> Identity:
        stages = self._number(Env.STAGES, 1, minimum=1)
        stage = self._number(Env.STAGE, None, minimum=0)
        if stage >= stages:
            raise BadIdentity(f"{Env.STAGE} is {stage}, but {Env.STAGES} is {stages}: stages count from 0")
        self._number(Env.THREADS, 1, minimum=1)  # read by ranks before they import torch
        layers = tuple(int(part) for part in self._text(Env.STAGE_LAYERS, "").split(",") if part)
        if layers and len(layers) != stages:
            raise BadIdentity(f"{Env.STAGE_LAYERS} names {len(layers)} stages, but {Env.STAGES} is {stages}")
        return Identity(
            group=self._text(Env.GROUP_UID),
            group_index=self._number(Env.GROUP_INDEX, 0, minimum=0),
            stage=stage,
            stages=stages,
            tensor=self._number(Env.TENSOR, 1, minimum=1),
            stage_layers=layers,
            incarnation=self._number(Env.INCARNATION, 1, minimum=1),
            leader=self._text(Env.LEADER_ADDRESS),
            pod_ip=self._pod_ip(),
            token=self._token(),
            state_dir=self._state_dir(),
            revision=self._text(Env.REVISION, ""),
            model_name=self._text(Env.MODEL_NAME),
            model_aliases=tuple(part for part in self._text(Env.MODEL_ALIASES, "").split(",") if part),
            checkpoint=Checkpoint(self._text(Env.MODEL_PATH), self._text(Env.MODEL_REVISION, "")),
            dtype=self._text(Env.MODEL_DTYPE, "auto"),
            max_model_length=self._number(Env.MAX_MODEL_LENGTH, 0, minimum=0),
            max_running_requests=self._number(Env.MAX_RUNNING_REQUESTS, 64, minimum=1),
            max_batched_tokens=self._number(Env.MAX_BATCHED_TOKENS, 512, minimum=1),
            max_queued_requests=self._number(Env.MAX_QUEUED_REQUESTS, 256, minimum=0),
            kv_bytes=self._number(Env.KV_BYTES, 0, minimum=0),
            prefix_caching=self._text(Env.PREFIX_CACHING, "1") == "1",
            drain_timeout_s=float(self._number(Env.DRAIN_TIMEOUT, 300, minimum=0)),
            http_processes=self._number(Env.HTTP_PROCESSES, 1, minimum=0),
            spare_rank=self._text(Env.SPARE_RANK, "1") == "1",
            device=self._text(Env.DEVICE, "auto"),
            speculation=self._number(Env.SPECULATION, 0, minimum=0),
            adapters=self._adapters(),
            max_adapter_rank=self._number(Env.MAX_ADAPTER_RANK, 64, minimum=1),
            spread_experts=self._text(Env.SPREAD_EXPERTS, "0") == "1",
            quantization=self._text(Env.QUANTIZATION, "none"),
            kv_dtype=self._text(Env.KV_DTYPE, "auto"),
            kv_fraction=self._number(Env.KV_FRACTION, 0, minimum=0),
            shard_cache=Path(cache) if (cache := self._text(Env.SHARD_CACHE, "")) else None,
            shard_cache_bytes=self._number(Env.SHARD_CACHE_BYTES, 0, minimum=0),
        )

    def _text(self, name: Env, default: str | None = None) -> str:
        value = self._environment.get(name, default)
        if value is None or (value == "" and default is None):
            raise BadIdentity(f"{name} is not set: {name.about}")
        return value

    def _number(self, name: Env, default: int | None, minimum: int) -> int:
        text = self._text(name, None if default is None else str(default))
        try:
            value = int(text)
        except ValueError:
            raise BadIdentity(f"{name} is {text!r}, not a whole number: {name.about}") from None
        if value < minimum:
            raise BadIdentity(f"{name} is {value}, the least is {minimum}: {name.about}")
        return value

    def _adapters(self) -> tuple[tuple[str, Path], ...]:
        adapters: list[tuple[str, Path]] = []
        for part in filter(None, self._text(Env.ADAPTERS, "").split(",")):
            name, equals, path = part.partition("=")
            if not (name and equals and path) or name in dict(adapters):
                raise BadIdentity(f"{Env.ADAPTERS} has {part!r}: write name=directory, each name once")
            adapters.append((name, Path(path)))
        return tuple(adapters)

    def _pod_ip(self) -> str:
        text = self._text(Env.POD_IP)
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            raise BadIdentity(f"{Env.POD_IP} is {text!r}, not an IP address: {Env.POD_IP.about}") from None

    def _token(self) -> bytes:
        path = Path(self._text(Env.TOKEN_FILE))
        try:
            token = bytes.fromhex(path.read_text().strip())
        except (OSError, ValueError) as error:
            raise BadIdentity(f"{Env.TOKEN_FILE} names {path}, which can't be read as hex: {error}") from None
        if len(token) < 16:
            raise BadIdentity(f"{path} holds {len(token)} bytes, a token has at least 16")
        return token

    def _state_dir(self) -> Path:
        path = Path(self._text(Env.STATE_DIR))
        if not os.access(path, os.W_OK | os.X_OK):
            raise BadIdentity(f"{Env.STATE_DIR} names {path}, which is no writable directory")
        return path
