"""Chapter 13: a function in several processes of this machine, which form a process group of torch.distributed."""

import datetime
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fa_tutorial import hardware
from fa_tutorial.arguments import check_int


class RankFailed(RuntimeError):
    """Some ranks failed. errors: what each of them raised, in one line, by rank."""

    def __init__(self, errors: dict[int, str]) -> None:
        self.errors = errors
        super().__init__("\n".join(f"rank {rank}: {error}" for rank, error in sorted(errors.items())))


def backend_for(ranks: int) -> str:
    """NCCL where each rank has a GPU of its own, else gloo."""
    return "nccl" if hardware.device().type == "cuda" and torch.cuda.device_count() >= ranks else "gloo"


def run(
    function: Callable, ranks: int, *arguments: Any, backend: str = "", timeout: float = 60.0, limit: float = 600.0
) -> list[Any]:
    """What function(*arguments) returns in each of `ranks` new processes, by rank.

    function: of a module, because the processes import it. It runs in a process group, and on this machine's device;
    ranks share a GPU where there are too few. backend and timeout, in seconds: the group's. limit: after so many
    seconds all processes are ended. What it returns is read by torch.load: tensors on the CPU, numbers, texts, and
    tuples, lists and dicts of them.

    Raises RankFailed where a rank raises, or ends without a result.
    """
    ranks = check_int("ranks", ranks)
    context = multiprocessing.get_context("forkserver")
    # Imported once, not by each process. With a GPU only what doesn't touch CUDA, which would not survive the fork.
    modules = ["fa_tutorial.ring", "torch.fx.experimental.symbolic_shapes", function.__module__]  # backward's: sympy
    context.set_forkserver_preload(["torch"] if hardware.has_gpu() else modules)
    with tempfile.TemporaryDirectory() as folder:
        settings = folder, backend or backend_for(ranks), ranks, timeout
        each = ((rank, *settings, function, arguments) for rank in range(ranks))
        processes = [context.Process(target=_one_rank, args=args, daemon=True) for args in each]
        for process in processes:
            process.start()
        end = time.monotonic() + limit
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
        found, errors = [], {}
        for rank, process in enumerate(processes):
            if process.is_alive():
                process.kill()
                process.join()
                errors[rank] = f"was still running after {limit:g} s, and was ended"
                continue
            path = Path(folder) / f"{rank}.pt"
            silent = {"error": f"ended without a word, exit code {process.exitcode}"}
            outcome = torch.load(path) if path.exists() else silent
            if "error" in outcome:
                errors[rank] = outcome["error"]
            found.append(outcome.get("result"))
        if errors:
            raise RankFailed(errors)
        return found


def _one_rank(rank: int, folder: str, backend: str, ranks: int, timeout: float, function: Callable, arguments: tuple):
    """A process's whole life: join the group, call the function, store what it gives or raises."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are here, whatever this machine's name resolves to
    torch.set_num_threads(1)
    if hardware.device().type == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    store, limit = dist.FileStore(str(Path(folder) / "store"), ranks), datetime.timedelta(seconds=timeout)
    store.set_timeout(limit)  # NCCL's first message asks it for the other rank's address
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=limit)
        outcome = {"result": function(*arguments)}
        dist.destroy_process_group()
    except Exception as error:
        outcome = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    part = Path(folder) / f"{rank}.part"
    torch.save(outcome, part)
    part.rename(part.with_suffix(".pt"))  # whole, or not there
