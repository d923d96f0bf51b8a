"""What `bireme up` keeps on the disk, one directory per deployment; a lock makes it the only one of its name.

lock          held while `up` runs, and gone when it has stopped; contains its pid
status.json   the object with status, and who is who (see runner)
routes.json   the router's routes file
wishes/       what `bireme reload`, `restart` and `rollback` ask for, until `up` has heard it
events.jsonl  every transition of this run, one JSON line each (see event_log)
tokens/       the group tokens, 0600
pods/G-S-I/   state directory of group G, stage S, incarnation I
logs/         one log per pod and the router's; kept until the next `up`

Files that others read are renamed into place, so that nobody sees half of one.
"""

import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import Final, Self

from bireme.names import Env
from bireme_operator.local.errors import AlreadyRunning, PathTooLong, RunDirUnusable

_LEAST_FREE: Final = 16 << 20
_SOCKET_PATH_LIMIT: Final = 107
_LONGEST_SOCKET_NAME: Final = "pods/9999-63-99999/requests.sock"


def run_root() -> Path:
    """Return the directory of all deployments: BIREME_RUN_DIR, or its default."""
    return Path(os.environ.get(Env.RUN_DIR) or Path.home() / ".local" / "state" / "bireme").absolute()


class RunDir:
    """The directory of one deployment. ``open`` locks it and removes what an earlier run left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.status = path / "status.json"
        self.routes = path / "routes.json"
        self.wishes = path / "wishes"
        self.events = path / "events.jsonl"
        self.logs = path / "logs"
        self._pods = path / "pods"
        self._tokens = path / "tokens"
        self._lock = path / "lock"
        self._lock_fd: int | None = None

    def open(self) -> Self:
        """Take the lock and begin anew.

        Raises:
            AlreadyRunning: another `up` holds it; names its pid. PathTooLong: with the numbers.
            RunDirUnusable: it can't be written.
        """
        room = _SOCKET_PATH_LIMIT - len(_LONGEST_SOCKET_NAME) - 1
        if len(str(self.path)) > room:
            raise PathTooLong(
                f"{self.path} has {len(str(self.path))} characters and sockets below it allow {room}: "
                f"set {Env.RUN_DIR} to a shorter directory"
            )
        try:
            self._prepare()
        except OSError as error:
            if self._lock_fd is not None:
                self.close()
            raise RunDirUnusable(
                f"{self.path} can't be used ({error.strerror}): set {Env.RUN_DIR} to a directory that you may write, "
                "with some MB free"
            ) from error
        return self

    def close(self) -> None:
        """Let the lock go; status and logs stay for whoever asks."""
        for left in (self._pods, self._tokens, self.wishes):
            shutil.rmtree(left, ignore_errors=True)
        if self._lock_fd is not None:
            self._lock.unlink(missing_ok=True)  # while it is held: whoever waits sees that it holds nothing
            os.close(self._lock_fd)
            self._lock_fd = None

    def holder(self) -> int | None:
        """Return the pid of the `up` that runs, None when none does."""
        try:
            fd = os.open(self._lock, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.read(fd, 32).strip() or 0)
        finally:
            os.close(fd)
        return None

    def state_dir(self, group: int, stage: int, incarnation: int) -> Path:
        """Return the pod's state directory, made when it is not there."""
        path = self._pods / f"{group}-{stage}-{incarnation}"
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def log(self, name: str) -> Path:
        """Return the log file of a pod or of the router."""
        return self.logs / f"{name}.log"

    def token_path(self, group: int) -> Path:
        """Return where the group's token lies."""
        return self._tokens / str(group)

    def write_token(self, group: int, token: str) -> Path:
        """Write the group's token, readable by this user only."""
        path = self.token_path(group)
        if not path.exists():
            with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(token)
        return path

    def _prepare(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._take_lock()
        for leftover in (self._pods, self._tokens, self.logs, self.wishes):
            shutil.rmtree(leftover, ignore_errors=True)
            leftover.mkdir(mode=0o700)
        for file in (self.status, self.routes, self.events):
            file.unlink(missing_ok=True)
        free = shutil.disk_usage(self.path).free
        if free < _LEAST_FREE:  # a run that can write nothing down would wait in silence
            raise OSError(errno.ENOSPC, f"{free / 2**20:.1f} MiB are free on its disk, {_LEAST_FREE >> 20} are needed")

    def _take_lock(self) -> None:
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(fd, 32).decode().strip()
            os.close(fd)
            raise AlreadyRunning(
                f"`bireme up` of {self.path.name} runs already as process {pid}: stop that one "
                f"(Ctrl-C there, or `kill -INT {pid}`), or give this deployment another metadata.name"
            ) from None
        if not self._is_there(fd):  # the last holder took it away between the two calls
            os.close(fd)
            self._take_lock()
            return
        self._lock_fd = fd
        os.ftruncate(fd, 0)
        os.write(fd, str(os.getpid()).encode())

    def _is_there(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self._lock.stat())
        except FileNotFoundError:
            return False


def replace_file(path: Path, content: bytes) -> None:
    """Write ``content`` so that a reader sees the old file or the new one."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content)
    fresh.replace(path)
