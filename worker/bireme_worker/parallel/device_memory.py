"""GPU memory that other processes of the host can open, by the driver's own calls.

Beside torch's allocator: a handle then opens exactly this memory, and it keeps its address for life. Peers are opened
on the reader's device, which turns peer access on.
"""

import ctypes
from functools import cache
from typing import Protocol

_LAZY_PEER_ACCESS = 1
HANDLE_BYTES = 64


class PeerMemoryError(Exception):
    """The driver refused: its message says what and with which code."""


class OpenMemory(Protocol):
    """Memory of one process that others can open."""

    address: int

    def clear(self) -> None:
        """Write zeros."""
        ...

    def handle(self) -> bytes:
        """What a peer needs to open it, HANDLE_BYTES long."""
        ...

    def open(self, handle: bytes) -> int:
        """The address of a peer's memory in this process.

        Raises:
            PeerMemoryError: it can't be reached from here.
        """
        ...

    def close(self, address: int) -> None:
        """Give it back."""
        ...


class _IpcHandle(ctypes.Structure):
    """The driver's handle, passed by value."""

    _fields_ = [("reserved", ctypes.c_byte * HANDLE_BYTES)]


class DeviceMemory:
    """``size`` bytes on the current device, zeroed.

    Raises:
        PeerMemoryError: no room.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        address = ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self.address = address.value
        self.clear()

    def clear(self) -> None:
        _call("cuMemsetD8_v2", ctypes.c_uint64(self.address), ctypes.c_ubyte(0), ctypes.c_size_t(self._size))

    def handle(self) -> bytes:
        handle = _IpcHandle()
        _call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(self.address))
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        address = ctypes.c_uint64()
        opened = _IpcHandle.from_buffer_copy(handle)
        _call("cuIpcOpenMemHandle_v2", ctypes.byref(address), opened, ctypes.c_uint(_LAZY_PEER_ACCESS))
        return address.value

    def close(self, address: int) -> None:
        _call("cuIpcCloseMemHandle", ctypes.c_uint64(address))


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: object) -> None:
    code = getattr(_driver(), name)(*arguments)
    if code != 0:
        raise PeerMemoryError(f"the GPU driver's {name} failed with code {code}")
