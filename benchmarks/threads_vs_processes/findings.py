"""The sentences under a table that follow from its figures, whatever these are."""

from __future__ import annotations

from benchmarks.threads_vs_processes.groups import Cell, Group, rate

PUBLISHED = 4.3 / 12.8
"""Rate with the flag forced to False over that without, as others have reported it."""
LIKE_PUBLISHED = 0.6
"""Up to here a slowdown is called one of that kind."""


def findings(group: Group) -> list[str]:
    """One sentence for each comparison whose two cells were run."""
    cells = {cell["name"]: cell for cell in group.cells}
    said = [_failures(group, how) for how in ("threads", "processes")]
    for cache in ("", " warm"):
        threads, processes = cells.get(f"threads{cache}"), cells.get(f"processes{cache}")
        if threads and processes:
            said += [_rates(threads, processes), _memory(threads, processes)]
    if group.gpus:  # the published rates are a GPU's
        said += [_forced(cells.get(f"threads{c}"), cells.get(f"threads flag_false{c}")) for c in ("", " warm")]
    return [sentence for sentence in said if sentence]


def _failures(group: Group, how: str) -> str:
    found = [cell for cell in group.cells if cell["how"] == how]
    if not found:
        return ""
    steps, failed = (sum(cell[key] for cell in found) for key in ("steps", "failed_steps"))
    where = [cell["name"] for cell in found if cell["failed_steps"]]
    text = f"{how.capitalize()}: {failed:,} of {steps + failed:,} steps failed in {len(found)} "
    text += "cell" if len(found) == 1 else "cells"
    return text + (f", all of them in {', '.join(f'`{name}`' for name in where)}." if where else ".")


def _rates(threads: Cell, processes: Cell) -> str:
    of_threads, of_processes = rate(threads), rate(processes)
    if not of_threads or not of_processes:
        return ""
    share = 100 * of_threads / of_processes
    return f"`{threads['name']}` trained at {share:.0f} % of the rate of `{processes['name']}`."


def _memory(threads: Cell, processes: Cell) -> str:
    gpu, host = ([cell["memory"].get(key) for cell in (processes, threads)] for key in ("gpu_used_mb", "host_own_mb"))
    more = [f"{a - b:,} MB of {what}" for (a, b), what in ((gpu, "GPU memory"), (host, "host memory")) if a and b]
    return f"`{processes['name']}` took {' and '.join(more)} more than `{threads['name']}`." if more else ""


def _forced(threads: Cell | None, forced: Cell | None) -> str:
    if threads is None or forced is None:
        return ""
    plain, slow = rate(threads), rate(forced)
    if not plain or not slow:
        return ""
    text = f"`{forced['name']}` trained at {100 * slow / plain:.0f} % of the rate of `{threads['name']}`"
    published = f"the published slowdown to {100 * PUBLISHED:.0f} % (12.8 K to 4.3 K tokens/s)"
    return f"{text}: {published} is {'seen' if slow / plain < LIKE_PUBLISHED else 'not reproduced'} here."
