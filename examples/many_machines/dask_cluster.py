"""Converts a group on a cluster of eight workers, one of which is killed.

    python dask_cluster.py IN OUT [ARGUMENT=VALUE ...]

It needs ``zarrs-cuda`` and ``distributed``. Any other cluster of Dask is used alike: its workers need the package, and
reach IN and OUT. The argument of ``zarrs_cuda.reencode`` are given as JSON, as ``shard=[64,64]``.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import zarrs_cuda
from distributed import Client, LocalCluster

WORKERS = 8


def kill_one(cluster: LocalCluster, out: Path) -> None:
    """Kills a worker as soon as something is stored. Its part is made again, by another one."""
    while not any(out.glob("**/c/**/*")):
        time.sleep(0.001)
    process = next(iter(cluster.workers.values())).process.process
    os.kill(process.pid, signal.SIGKILL)
    print("killed the worker", process.pid)


def main() -> None:
    """Converts, and prints the state of the run."""
    source, out, *arguments = sys.argv[1:]
    options = {name: json.loads(value) for name, value in (word.split("=", 1) for word in arguments)}
    with LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        threading.Thread(target=kill_one, args=(cluster, Path(out)), daemon=True).start()
        # More parts than workers: a part that is made again is a small one.
        report = zarrs_cuda.reencode(source, out, recursive=True, threads=1, client=client, parts=2 * WORKERS, **options)
    print(json.dumps(report["status"]))


if __name__ == "__main__":
    main()
