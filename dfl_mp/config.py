"""The one typed configuration tree. Hydra composes YAML from `conf/`; `parse` checks it once and freezes it.

A leaf: no torch. Every default has its one home in `conf/`, so no field here has a second default.
`null` in a field that may be None means "derive it"; each such field says from what.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from dfl_mp.errors import ConfigError

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
DType = Literal["auto", "float32", "bfloat16", "float64"]
"""`auto`: bfloat16 on a GPU, float32 without one; `with_dtypes` decides before the run's config is written."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class RunConfig(Section):
    dir: str | None
    """Folder of the run; None: `runs/<time>-<experiment>`."""
    name: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    progress_every_s: Seconds


class TargetConfig(Section):
    path: Text
    """Local folder or hub name of a transformers causal LM; `builtin:quickstart` names the one that ships with
    dfl-mp."""
    revision: str | None
    num_features: Positive
    """F; used when `layer_ids` is None."""
    layer_ids: tuple[Natural, ...] | None
    """0-based decoder layers whose output is a feature; None: spread over the target by its depth and F."""
    dtype: DType
    attention: Literal["auto", "varlen", "flex", "sdpa", "eager"]
    """Features of packed rows: `varlen` and `flex` are kernels that know documents, the others use masks; `auto`:
    `varlen` on a GPU where it is proved right, else `sdpa`. Decoding uses `eager` or `sdpa`."""
    compile: Literal["auto", True, False]
    """Compile the layers that make features; `auto`: on a GPU."""
    float8: bool
    """Linear layers that make features in float8; needs compute capability 8.9."""
    trust_remote_code: bool
    load_format: Literal["auto", "dummy"]
    """`dummy`: random weights for a folder that holds only `config.json` and a tokenizer; for measuring speed."""


class DrafterConfig(Section):
    num_layers: Positive
    block_size: Annotated[int, Field(ge=2)]
    """K."""
    mask_token_id: Natural | None
    """None: chosen from the tokenizer, see `dfl_mp.data.mask_token`."""
    intermediate_size: Positive | None
    """None (here and in the next three): as the target."""
    num_attention_heads: Positive | None
    num_key_value_heads: Positive | None
    head_dim: Positive | None
    layer_types: tuple[Literal["full_attention", "sliding_attention"], ...] | None
    """One per layer; None: all full."""
    sliding_window: Positive | None
    is_causal: bool | None
    """Sliding layers only: causal inside the block; None: true, as the public readers do."""
    dtype: DType
    """Compute dtype; weights and moments are float32, or float64 when this is float64."""
    attention: Literal["auto", "dense", "flex", "flash"]
    float8: bool
    """Products of the layers in float8, their weight gradients in `dtype`; needs compute capability 8.9."""
    activation_memory_budget: Annotated[float, Field(ge=0.0, le=1.0)]
    """1 keeps all that the backward needs, less computes some of it again (gradient checkpointing); compiled steps."""


class DataConfig(Section):
    path: Text
    """JSONL of conversations; `builtin:quickstart` names the file that ships with dfl-mp."""
    prompts: Text | None
    """JSONL of held-out prompts for the evaluation; None: no evaluation."""
    row_tokens: Annotated[int, Field(ge=8)]
    """S."""
    rows_per_pack: Positive
    anchors_per_row: Positive | None
    """N; None: as many as the rows of the data use, see `dfl_mp.data.packing.choose_slots`."""
    max_anchors_per_document: Positive
    max_documents: Positive | None
    cache_dir: Text


class OptimConfig(Section):
    lr: Annotated[float, Field(gt=0)]
    beta1: Annotated[float, Field(ge=0, lt=1)]
    beta2: Annotated[float, Field(ge=0, lt=1)]
    eps: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)]
    clip_norm: Annotated[float, Field(gt=0)]
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)]
    schedule: Literal["cosine", "wsd", "constant"]
    decay_ratio: Annotated[float, Field(gt=0, le=1)]
    """Share of the steps in the decay of `wsd`."""


class LossConfig(Section):
    name: Literal["dflash", "dpace"]
    gamma: Annotated[float, Field(gt=0)] | None
    """None: 7, 5, 4 for K = 16, 10, 8, and linear between and beyond."""
    alpha: Annotated[float, Field(gt=0, le=1)]
    """D-PACE only."""


class TrainConfig(Section):
    seed: Natural
    max_steps: Positive | None
    """None: `epochs` over the data decide."""
    epochs: Positive
    packs_per_step: Positive
    """G: packs in one optimizer step, whatever the number of drafters."""
    max_skipped_in_a_row: Positive
    loss: LossConfig


class ClusterConfig(Section):
    targets: Positive | None
    """None: chosen from the machine."""
    drafters: Positive | None
    """None: chosen from the machine."""
    slots_per_target: Positive
    threads_per_worker: Positive
    """CPU threads of a worker that has no GPU."""
    transport: Literal["auto", "shm"]
    restarts_per_worker: Natural
    compile_cache: Text | None
    """Folder of compiled code, for its owner alone, shared by all workers and runs; None: `dfl-mp/compile` in the
    user's cache folder. Torch's, Triton's and FlashAttention's own variables win."""
    on_recompile: Literal["event", "error"]
    """What a graph that is compiled after a drafter's warm-up is: an event with its reason, or the worker's end."""


class CheckpointConfig(Section):
    every_steps: Natural
    """0: only at the end."""
    keep: Positive


def _only_at_the_end(every_steps: int) -> int:
    if every_steps:
        raise PydanticCustomError("unsupported", "only 0 is supported so far: the evaluation runs at the end")
    return every_steps


class EvalConfig(Section):
    every_steps: Annotated[Natural, AfterValidator(_only_at_the_end)]
    """0, the only choice so far: at the end."""
    num_prompts: Positive
    max_new_tokens: Positive
    untrained: bool
    """Measure the untrained drafter too."""


class DeadlineConfig(Section):
    """How long each wait may last, in seconds."""

    prepare: Seconds
    start: Seconds
    step: Seconds
    reduce: Seconds
    form: Seconds
    save: Seconds
    stop: Seconds
    evaluate: Seconds


class Config(Section):
    run: RunConfig
    target: TargetConfig
    drafter: DrafterConfig
    data: DataConfig
    optim: OptimConfig
    train: TrainConfig
    cluster: ClusterConfig
    checkpoint: CheckpointConfig
    eval: EvalConfig
    deadline: DeadlineConfig


def with_dtypes(config: Config, gpu: bool) -> Config:
    """The config with every `auto` dtype decided for this machine."""
    dtype = "bfloat16" if gpu else "float32"
    decided: dict[str, Any] = {}
    for name, section in (("target", config.target), ("drafter", config.drafter)):
        if section.dtype == "auto":
            decided[name] = section.model_copy(update={"dtype": dtype})
    return config.model_copy(update=decided)


def parse(tree: dict[str, Any]) -> Config:
    """Check a composed tree and freeze it.

    Raises ConfigError with one line per wrong field: `optim.lr: Input should be greater than 0 (got -1)`.
    """
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        lines = []
        for e in error.errors():
            field = ".".join(str(part) for part in e["loc"])
            got = "" if e["type"] in ("missing", "extra_forbidden") else f" (got {e['input']!r})"
            text = {"extra_forbidden": "unknown field", "missing": "is missing"}.get(e["type"], e["msg"])
            lines.append(f"{field}: {text}{got}")
        raise ConfigError("; ".join(lines)) from None
    block, row = config.drafter.block_size, config.data.row_tokens
    if block > row:
        raise ConfigError(f"drafter.block_size: {block} is longer than a row of {row} tokens (data.row_tokens)")
    return config
