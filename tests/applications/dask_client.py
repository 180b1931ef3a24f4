"""Computes on two workers of Dask, then ends them and the scheduler."""

import pathlib
import time

import dask
from distributed import Client

while not pathlib.Path("cluster.json").exists():
    time.sleep(0.05)


@dask.delayed
def square(number):
    return number * number


with Client(scheduler_file="cluster.json") as client:
    client.wait_for_workers(2)
    total = dask.delayed(sum)([square(number) for number in range(200)]).compute()
    print(f"result {total} workers {len(client.scheduler_info()['workers'])}", flush=True)
    client.shutdown()
