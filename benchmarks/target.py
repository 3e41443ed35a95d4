"""A frozen target with random weights making features of full packs: transformers as it is beside ours, in one run.

    python -m benchmarks.target --size qwen3_8b --rows 4 --tokens 4096 --out target.json

All variants run the same weights, embedding to the last feature layer, and give the features of five layers by hooks.
`packed` rows hold `--documents` documents, `full` rows one. `plain` is transformers with SDPA: its packed-row masks are
dense, its full rows need none, which is the most favourable case. Rates count all tokens. Useful operations are the
products of the layers and 4·C a visible pair and head; nothing else. Errors are of the first packed row against
the same weights in float32: per layer, the median over tokens of the relative error. Each variant is written when it is
measured.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks import dummy_target
from benchmarks.results_file import ResultFile, require_cuda
from benchmarks.shapes import random_pack
from benchmarks.step import kernels, product_tflops
from dfl_mp.config import TargetConfig
from dfl_mp.model.float8 import require
from dfl_mp.model.target import FeatureTarget, use_float8
from dfl_mp.model.target_compile import compile_target, undo
from dfl_mp.model.target_load import load_decoder
from dfl_mp.model.target_proof import median_error
from dfl_mp.model.target_spec import describe_target
from dfl_mp.specs import TargetSpec

Inputs = tuple[Tensor, Tensor, Tensor]
Start = Callable[[FeatureTarget, Inputs], None]
KINDS = ("packed", "full")


def load(size: str, device: torch.device) -> tuple[PreTrainedModel, TargetSpec]:
    """The decoder of a size in bfloat16 (float32 without a GPU), truncated, unmodified."""
    with tempfile.TemporaryDirectory() as folder:
        config = TargetConfig(
            path=str(dummy_target.write(size, Path(folder))),
            revision=None,
            num_features=5,
            layer_ids=None,
            dtype="bfloat16" if device.type == "cuda" else "float32",
            attention="sdpa",
            compile=False,
            float8=False,
            trust_remote_code=False,
            load_format="dummy",
        )
        spec = describe_target(config)
        return load_decoder(spec, config, device)[0], spec


def plain_target(decoder: PreTrainedModel, spec: TargetSpec) -> FeatureTarget:
    target = FeatureTarget(decoder, decoder.layers, spec)
    target.use("masks")
    return target


def inputs_of(options: argparse.Namespace, documents: int) -> Inputs:
    pack = random_pack(options.rows, options.tokens, 1, 3000, documents)
    fields = (pack.tokens_BS, pack.position_BS, pack.document_BS)
    return tuple(x.pin_memory() if torch.cuda.is_available() else x for x in fields)  # type: ignore[return-value]


def useful_flop(target: FeatureTarget, inputs: Inputs) -> float:
    """See the module."""
    weights = sum(w.numel() for layer in target.layers for w in layer.parameters() if w.ndim > 1)
    pairs = int((inputs[1] + 1).sum())
    head = target.spec.num_attention_heads * target.spec.head_dim
    return 2.0 * inputs[0].numel() * weights + 4.0 * head * pairs * len(target.layers)


def reference(decoder: PreTrainedModel, spec: TargetSpec, inputs: Inputs) -> Tensor:
    """Features of the first row with the same weights in float32."""
    exact = plain_target(copy.deepcopy(decoder).float(), spec)
    return exact.features(*(x[:1] for x in inputs)).cpu()


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def variants(target: FeatureTarget) -> Iterator[tuple[str, Start]]:
    """(name, what makes the target so); each starts where the one before it ended."""

    def attend(way: Any) -> Start:
        return lambda t, inputs: t.use(way)

    def compiled(t: FeatureTarget, inputs: Inputs) -> None:
        undo(t.layers)
        t.use("varlen" if t.device.type == "cuda" else "flex")
        if why := compile_target(t, *inputs[0].shape, backend="inductor" if t.device.type == "cuda" else "aot_eager"):
            raise RuntimeError(why)

    def float8(t: FeatureTarget, inputs: Inputs) -> None:
        require("target.float8", t.device, t.dtype)
        undo(t.layers)
        use_float8(t)
        compiled(t, inputs)

    yield "plain", attend("masks")
    yield "flex", attend("flex")
    yield "varlen", attend("varlen")
    yield "varlen_compiled", compiled
    yield "varlen_compiled_float8", float8


def measure(
    target: FeatureTarget, start: Start, data: dict[str, Inputs], options: argparse.Namespace
) -> dict[str, Any]:
    """One variant on both kinds of rows."""
    device = target.device
    out = torch.empty(options.rows, options.tokens, target.width, dtype=target.dtype, device=device)
    found: dict[str, Any] = {"start_s": round(seconds(lambda: start(target, data["packed"]), device), 1)}
    for kind in KINDS:
        work = lambda kind=kind: target.features(*data[kind], out=out)  # noqa: E731
        found[f"{kind}_first_s"] = round(seconds(work, device), 2)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        work()
        times = [seconds(work, device) for _ in range(options.steps)]
        found[f"{kind}_ms"] = round(statistics.median(times) * 1e3, 1)
        found[f"{kind}_tokens_per_s"] = round(out[..., 0].numel() / statistics.median(times))
        if device.type == "cuda":
            found[f"{kind}_peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    target.features(*data["packed"], out=out)
    found["features"] = out[:1].cpu()
    return found


def layer_errors(found: Tensor, expected: Tensor, layers: int) -> list[float]:
    pairs = zip(found.float().chunk(layers, dim=-1), expected.chunk(layers, dim=-1), strict=True)
    return [float(f"{median_error(*pair):.2e}") for pair in pairs]


def run(options: argparse.Namespace) -> None:
    device = torch.device(options.device)
    file, began = ResultFile("target", options.out), time.monotonic()
    data = {"packed": inputs_of(options, options.documents), "full": inputs_of(options, 1)}
    decoder, spec = load(options.size, device)
    expected = reference(decoder, spec, data["packed"])
    target = plain_target(decoder, spec)
    print(f"{time.monotonic() - began:6.1f} s  loaded, float32 reference made", flush=True)
    product = product_tflops(device) if device.type == "cuda" else None
    shape = {name: getattr(options, name) for name in ("size", "rows", "tokens", "documents", "steps")}
    file.add("case", {**shape, "layers": len(target.layers), "product_tflops": product and round(product, 1)})
    flop = {kind: useful_flop(target, data[kind]) for kind in KINDS}
    results: dict[str, Any] = {}
    for name, start in variants(target):
        if options.variants and name not in options.variants:
            continue
        gc.collect()
        try:
            found = measure(target, start, data, options)
            found["error_by_layer"] = layer_errors(found.pop("features"), expected, len(target.spec.layer_ids))
            add_rates(found, flop, product, results.get("plain"))
            if name in options.profile:
                found["kernels"] = kernels(lambda: target.features(*data["packed"]))
        except Exception as error:  # one variant that fails does not stop the others
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"[:500]}
        results[name] = found
        print(f"{time.monotonic() - began:6.1f} s  {name}: {found}", flush=True)
        file.add("variants", results)


def add_rates(
    found: dict[str, Any], flop: dict[str, float], product: float | None, plain: dict[str, Any] | None
) -> None:
    """TFLOP/s of useful work, their share of a plain product's, and the rate against plain transformers."""
    for kind in KINDS:
        rate = flop[kind] / found[f"{kind}_ms"] / 1e9
        found[f"{kind}_tflops"] = round(rate, 1)
        if product:
            found[f"{kind}_share_of_product"] = round(rate / product, 3)
        if plain and "error" not in plain:
            found[f"{kind}_ratio_to_plain"] = round(plain[f"{kind}_ms"] / found[f"{kind}_ms"], 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="qwen3_8b", choices=sorted(dummy_target.SHAPES))
    for name, default in (("rows", 4), ("tokens", 4096), ("documents", 8), ("steps", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--variants", nargs="*", default=[], help="only these; all by default")
    parser.add_argument("--profile", nargs="*", default=[], help="variants whose kernels are listed")
    parser.add_argument("--out", type=Path, help="result file")
    options = parser.parse_args()
    if options.device == "cuda":
        require_cuda("target")
    with torch.no_grad():
        run(options)


if __name__ == "__main__":
    main()
