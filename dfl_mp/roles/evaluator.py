"""The evaluator: exports the newest checkpoint and measures it by real decoding with the whole target.

    python -m dfl_mp.roles.evaluator RUN_DIR

consumes: RUN_DIR/config.json, prepared.json, the newest RUN_DIR/checkpoints/step_*, the prompts in the data folder
waits for: nothing
produces: RUN_DIR/export, then RUN_DIR/eval.json
Exit 0 done, 2 the user's input is wrong, 1 anything else.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dfl_mp.checkpoint import DRAFTER, read_manifest
from dfl_mp.config import Config, TargetConfig
from dfl_mp.data.prompts import Prompt, load_prompts
from dfl_mp.errors import CheckpointError, ConfigError
from dfl_mp.export import export_drafter, load_exported
from dfl_mp.log import write_json
from dfl_mp.model.decode import Decoded, Limits, acceptance, greedy_decode, repetition_rate, speculative_decode
from dfl_mp.model.drafter import Drafter, new_drafter
from dfl_mp.model.target_full import FullTarget, load_full_target
from dfl_mp.roles.common import begin, device, exit_code_of
from dfl_mp.roles.sample import sample
from dfl_mp.specs import DrafterSpec, Prepared

Prompts = Sequence[Sequence[int]]
Say = Callable[[str], None]


@dataclass
class Answers:
    """The responses to every prompt, decoded in each way; `untrained` stays empty when it was not asked for."""

    own: list[Decoded] = field(default_factory=list)
    trained: list[Decoded] = field(default_factory=list)
    blind: list[Decoded] = field(default_factory=list)
    """The trained drafter with its features zeroed."""
    untrained: list[Decoded] = field(default_factory=list)


def newest_checkpoint(run_dir: Path) -> Path:
    """The step folder of the highest number. Raises ConfigError naming `run.dir` when there is none."""
    folders = sorted((run_dir / "checkpoints").glob("step_" + "[0-9]" * 8))
    if not folders:
        raise ConfigError(f"run.dir: no checkpoint in {run_dir / 'checkpoints'}")
    return folders[-1]


def export_checkpoint(checkpoint: Path, prepared: Prepared, folder: Path) -> Path:
    """Export a checkpoint's weights. Raises CheckpointError naming the file that is torn or foreign."""
    read_manifest(checkpoint)
    try:
        weights = load_file(checkpoint / DRAFTER)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{checkpoint / DRAFTER}: cannot be read: {error}") from None
    return export_drafter(weights, prepared.drafter, prepared.target, folder)


def make_drafter(spec: DrafterSpec, weights: dict[str, Tensor] | int, target: FullTarget) -> Drafter:
    """A drafter in the target's dtype and place, from weights or, untrained, from a seed."""
    drafter = new_drafter(spec, target.device)
    if isinstance(weights, int):
        drafter.init_weights(weights)
    else:
        drafter.load_state_dict(weights)
    return drafter.to(target.dtype).eval().requires_grad_(False)


def decode_all(
    target: FullTarget, drafters: tuple[Drafter, Drafter | None], prompts: Prompts, limits: Limits, say: Say
) -> Answers:
    """Answer every prompt with the target alone, the trained drafter, the same without features, the untrained one."""
    trained, untrained = drafters
    answers, ends = Answers(), target.ends()
    started = last = time.monotonic()
    for prompt in prompts:
        answers.own.append(greedy_decode(target, prompt, limits))
        answers.trained.append(speculative_decode(target, trained, ends, prompt, limits))
        answers.blind.append(speculative_decode(target, trained, ends, prompt, limits, zero_features=True))
        if untrained is not None:
            answers.untrained.append(speculative_decode(target, untrained, ends, prompt, limits))
        done, now = len(answers.own), time.monotonic()
        if now - last > 5.0 or done == len(prompts):
            last, tau = now, acceptance(answers.trained).tau_mean
            say(f"evaluation: {done} of {len(prompts)} prompts, tau {tau:.2f} so far, {now - started:.0f} s")
    return answers


def summarise(answers: Answers) -> dict[str, Any]:
    """The numbers of eval.json; a tau that was not measured is None."""
    trained = acceptance(answers.trained)
    pairs = list(zip(answers.own, answers.trained, strict=True))
    share = lambda values: sum(values) / len(pairs) if pairs else None  # noqa: E731
    return {
        "prompts": len(pairs),
        "tokens": sum(len(r.tokens) for r in answers.trained),
        "tau_mean": trained.tau_mean if pairs else None,
        "tau_pooled": trained.tau_pooled if pairs else None,
        "tau_untrained": acceptance(answers.untrained).tau_mean if answers.untrained else None,
        "tau_zero_features": acceptance(answers.blind).tau_mean if pairs else None,
        "histogram": trained.histogram,
        "greedy_identical": share([own.tokens == ours.tokens for own, ours in pairs]),
        "repetition_rate": share([repetition_rate(ours.tokens) for _, ours in pairs]),
    }


def first_differences(prompts: Prompts, answers: Answers) -> list[tuple[list[int], int, int]]:
    """Where the trained response leaves the target's own: (the ids up to there, the target's token, ours)."""
    found = []
    for prompt, own, ours in zip(prompts, answers.own, answers.trained, strict=True):
        for i, (a, b) in enumerate(zip(own.tokens, ours.tokens, strict=False)):
            if a != b:
                found.append(([*prompt, *own.tokens[:i]], a, b))
                break
    return found


def largest_gap(target: FullTarget, differences: list[tuple[list[int], int, int]]) -> float:
    """How far, in `target`'s logits, the worse of two differing tokens lies below the best one; the largest of all.

    Near 0 the two ways of decoding parted at a tie, and rounding decided.
    """
    gaps = [0.0]
    for ids, own, ours in differences:
        logits_V = target.forward(torch.tensor(ids, device=target.device), target.new_cache(), last=True)[0][0].double()
        gaps.append(float(logits_V.max() - torch.minimum(logits_V[own], logits_V[ours])))
    return max(gaps)


def evaluate(config: Config, prepared: Prepared, export: Path, heldout: Sequence[Prompt], say: Say) -> dict[str, Any]:
    """Decode with the exported folder's weights and measure. On a CPU everything is float32."""
    prompts = [prompt.ids for prompt in heldout]
    place = device()
    setting = config.target if place.type == "cuda" else _float32(config.target)
    limits = Limits(config.eval.max_new_tokens, frozenset(prepared.target.eos_token_ids))
    target = load_full_target(prepared.target, setting, place)
    spec, weights = load_exported(export)
    untrained = make_drafter(spec, config.train.seed, target) if config.eval.untrained else None
    answers = decode_all(target, (make_drafter(spec, weights, target), untrained), prompts, limits, say)
    found = summarise(answers) | {"dtype": setting.dtype, "device": place.type, "differences": 0, "largest_gap": 0.0}
    found["sample"] = sample(config.target, prepared.target.path, [p.text for p in heldout], answers.trained)
    differences = first_differences(prompts, answers)
    if differences:
        if setting.dtype == "bfloat16":
            del target, untrained
            gc.collect()
            target = load_full_target(prepared.target, _float32(config.target), place)
        found |= {"differences": len(differences), "largest_gap": largest_gap(target, differences)}
    return found


def _float32(config: TargetConfig) -> TargetConfig:
    return config.model_copy(update={"dtype": "float32"})


def run(run_dir: Path, say: Say) -> dict[str, Any]:
    """Export, measure, write eval.json. Raises ConfigError, CheckpointError."""
    started = time.monotonic()
    job = begin(["evaluator", str(run_dir)])
    checkpoint = newest_checkpoint(run_dir)
    export = export_checkpoint(checkpoint, job.prepared, run_dir / "export")
    say(f"exported {checkpoint.name} to {export}")
    prompts = load_prompts(Path(job.prepared.data_dir))[: job.config.eval.num_prompts]
    step = int(checkpoint.name.removeprefix("step_"))
    result: dict[str, Any] = {"step": step, "export": str(export), **summarise(Answers())}
    if prompts:
        result |= evaluate(job.config, job.prepared, export, prompts, say)
    else:
        say("no held-out prompts (data.prompts): acceptance was not measured")
    result["seconds"] = time.monotonic() - started
    write_json(run_dir / "eval.json", result)
    for line in describe(result):
        say(line)
    return result


def describe(result: dict[str, Any]) -> list[str]:
    """The result in a few lines for people."""
    if not result["prompts"]:
        return []
    untrained = "" if result["tau_untrained"] is None else f", untrained {result['tau_untrained']:.2f}"
    lines = [
        f"tau {result['tau_mean']:.2f} (mean over {result['prompts']} responses; pooled {result['tau_pooled']:.2f}"
        f"{untrained}, with features zeroed {result['tau_zero_features']:.2f})",
        f"{result['greedy_identical']:.0%} of the responses are the target's own greedy output token for token"
        f" ({result['dtype']})",
    ]
    if result["differences"]:
        lines.append(
            f"{result['differences']} differ, first at a tie within {result['largest_gap']:.4f} logits in float32"
        )
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dfl_mp.roles.evaluator")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("worker", nargs="?", default="", help="name of this worker, given by the launcher")
    arguments = parser.parse_args(argv)
    try:
        if not (arguments.run_dir / "prepared.json").is_file():
            raise ConfigError(f"run.dir: {arguments.run_dir} is not a prepared run")
        run(arguments.run_dir, lambda line: print(line, flush=True))
    except ConfigError as error:
        return exit_code_of(error)
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
