"""Transfers between two ranks' open memory: two real processes, the kernels in Triton's interpreter."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
PATIENCE_S = 120


@pytest.mark.parametrize("scene", ["sums", "stages", "alone", "late"])
def test_two_ranks_exchange_tensors_through_open_memory(scene: str, tmp_path: Path) -> None:
    ours = _pair()
    ranks = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.exchange_rank", "--scene", scene),
                *("--fd", str(sock.fileno()), "--rank", str(rank), "--directory", str(tmp_path)),
            ],
            pass_fds=[sock.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, sock in enumerate(ours)
    ]
    for sock in ours:
        sock.close()  # a rank that fails closes the line, which ends the other
    try:
        told = [rank.communicate(timeout=PATIENCE_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(told)


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialled = socket.create_connection(listener.getsockname())
        return dialled, listener.accept()[0]
