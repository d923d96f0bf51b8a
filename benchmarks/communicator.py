"""All-reduce between CPU ranks: Bireme's socket communicator beside torch's gloo, in one run.

`python benchmarks/communicator.py` runs both at 4, 64 and 1,024 KiB (fp32) with 2 and 3 ranks, every rank with one
compute thread. Prints the median and 95th percentile of rank 0; the last line is JSON with the ratios gloo / ours.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

KIB = (4, 64, 1024)
WORLDS = (2, 3)
TOKEN = bytes(32)
Timings = dict[str, list[float]]


def measure(all_reduce: "Callable[[object], object]", repeats: int) -> Timings:
    import torch

    timings: Timings = {}
    for kib in KIB:
        x = torch.ones(kib * 256)
        for _ in range(10):
            all_reduce(x)
        samples = []
        for _ in range(repeats):
            begin = time.perf_counter()
            all_reduce(x)
            samples.append((time.perf_counter() - begin) * 1e3)
        timings[str(kib)] = [statistics.median(samples), statistics.quantiles(samples, n=20)[-1]]
    return timings


def run_ours(rank: int, ports: list[int], repeats: int) -> Timings:
    from bireme.wire.control import Address
    from bireme_worker.parallel.data_listener import DataListener
    from bireme_worker.parallel.gate import EpochGate
    from bireme_worker.parallel.mesh import Mesh, Place

    addresses = tuple(Address("127.0.0.1", port) for port in ports)
    mesh = Mesh(Place(0, 1, rank, len(ports)), DataListener(addresses[rank], TOKEN), TOKEN)
    communicator = mesh.connect(EpochGate(1), (addresses,), limit_s=60)
    return measure(communicator.all_reduce, repeats)  # type: ignore[arg-type]


def run_gloo(rank: int, ports: list[int], repeats: int) -> Timings:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{ports[0]}", rank=rank, world_size=len(ports))
    timings = measure(dist.all_reduce, repeats)
    dist.destroy_process_group()
    return timings


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(sock.getsockname()[1]) for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def run_world(kind: str, world: int, repeats: int) -> Timings:
    ports = ",".join(map(str, free_ports(world)))
    command = [sys.executable, str(Path(__file__)), "--kind", kind, "--repeats", str(repeats), "--ports", ports]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    children = [
        subprocess.Popen([*command, "--rank", str(rank)], env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    outputs = [child.communicate(timeout=300)[0] for child in children]
    timings: Timings = json.loads(outputs[0].splitlines()[-1])
    return timings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--kind", choices=("ours", "gloo"))
    parser.add_argument("--rank", type=int)
    parser.add_argument("--ports")
    arguments = parser.parse_args()
    if arguments.kind:
        import torch

        torch.set_num_threads(1)
        ports = [int(port) for port in arguments.ports.split(",")]
        run = run_ours if arguments.kind == "ours" else run_gloo
        print(json.dumps(run(arguments.rank, ports, arguments.repeats)), flush=True)
        return
    ratios = {}
    for world in WORLDS:
        ours, gloo = (run_world(kind, world, arguments.repeats) for kind in ("ours", "gloo"))
        for kib in map(str, KIB):
            ratios[f"world{world}_{kib}kib"] = round(gloo[kib][0] / ours[kib][0], 2)
            print(
                f"world {world}, {kib:>4} KiB: ours {ours[kib][0]:.3f} ms (p95 {ours[kib][1]:.3f}), "
                f"gloo {gloo[kib][0]:.3f} ms (p95 {gloo[kib][1]:.3f})"
            )
    print(json.dumps({"benchmark": "communicator", "gloo_over_ours": ratios}))


if __name__ == "__main__":
    main()
