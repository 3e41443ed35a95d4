"""The coordinator's disk: the ledger (`metrics.jsonl`), the published checkpoints, the generation number, packs set
aside."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from dfl_mp import metrics
from dfl_mp.errors import CheckpointError
from dfl_mp.log import JsonLines, fsync_path, read_lines, say, write_json
from dfl_mp.protocol.effects import AppendLedger
from dfl_mp.protocol.scheduler import OnDisk


class Ledger:
    """Everything here is carried out before what comes after it is sent."""

    def __init__(self, run_dir: Path, keep: int) -> None:
        self._path = run_dir / "metrics.jsonl"
        self._state = run_dir / "state.json"
        self._checkpoints = run_dir / "checkpoints"
        self._keep = keep
        self._checkpoints.mkdir(mode=0o700, exist_ok=True)
        lines = read_lines(self._path)
        for i, line in enumerate(lines):
            if line.get("step") != i:
                raise CheckpointError(f"{self._path}: line {i + 1} is of step {line.get('step')}")
        self._rewrite(len(lines))
        self.rates = metrics.Rates(time.monotonic())

    def load(self) -> OnDisk:
        """What an earlier coordinator left. A checkpoint beyond the ledger, as a disk that lost lines leaves it, does
        not count (rules 20, 22); the next cut deletes it."""
        state = json.loads(self._state.read_text()) if self._state.exists() else {}
        lines = len(read_lines(self._path))
        steps = {int(p.name.removeprefix("step_")) for p in self._checkpoints.glob("step_*")}
        for beyond in sorted(k for k in steps if k > lines):
            say(f"{self._path}: {lines} lines; the checkpoint of step {beyond} is beyond them and does not count")
            steps.remove(beyond)
        return OnDisk(lines, steps, state.get("generation", 0), set(state.get("aside", [])))

    def persist(self, generation: int, aside: set[int]) -> None:
        """Put the generation number and the packs set aside on disk."""
        write_json(self._state, {"generation": generation, "aside": sorted(aside)})
        fsync_path(self._state.parent)

    def append(self, effect: AppendLedger) -> dict[str, object]:
        """Write the line and return it."""
        rates = self.rates.committed(effect.statistics.tokens, time.monotonic())
        group = (effect.drafters, effect.generation)
        line = metrics.line(effect.step, effect.packs, effect.statistics, group, rates)
        self._lines.append(line)
        return line

    def sync(self) -> None:
        """Before a checkpoint is ordered: the disk has every line (rule 20)."""
        self._lines.sync()

    def cut(self, steps: int) -> None:
        """Keep the first lines; delete the checkpoints beyond (rule 22)."""
        for folder in self._checkpoints.glob("step_*"):
            if int(folder.name.removeprefix("step_")) > steps:
                shutil.rmtree(folder)
        self._rewrite(steps)

    def publish(self, steps: int, folder: str) -> Path:
        """One rename makes the checkpoint visible; the oldest beyond `keep` go."""
        final = self._checkpoints / f"step_{steps:08d}"
        if final.exists():
            shutil.rmtree(final)
        (self._checkpoints / Path(folder).name).rename(final)
        fsync_path(self._checkpoints)
        for old in sorted(self._checkpoints.glob("step_*"))[: -self._keep]:
            shutil.rmtree(old)
        return final

    def sweep(self, alive: tuple[str, ...]) -> None:
        """Remove half-written checkpoints of workers that are not alive."""
        for folder in self._checkpoints.glob(".private-*"):
            if not any(folder.name.startswith(f".private-{worker}-") for worker in alive):
                shutil.rmtree(folder, ignore_errors=True)

    def _rewrite(self, steps: int) -> None:
        """Replace the file by its first lines; on disk before this returns."""
        lines = read_lines(self._path)[:steps]
        part = self._path.with_name(".metrics.part")
        part.write_text("".join(json.dumps(line) + "\n" for line in lines))
        fsync_path(part)
        part.replace(self._path)
        fsync_path(self._path.parent)
        self._lines = JsonLines(self._path)
