"""The evaluator on a run folder with a tiny target: what it exports, measures, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

from dfl_mp import checkpoint
from dfl_mp.config import parse
from dfl_mp.data.prompts import Prompt, write_prompts
from dfl_mp.export import load_exported
from dfl_mp.model.decode import Decoded
from dfl_mp.model.drafter import Drafter
from dfl_mp.model.target_full import load_full_target
from dfl_mp.model.target_spec import describe_target, drafter_spec
from dfl_mp.roles.evaluator import Answers, first_differences, largest_gap, main
from dfl_mp.roles.sample import runs_of, typical
from dfl_mp.specs import Prepared
from tests.unit.tiny_targets import VOCAB, fit_drafter, save_tiny, target_config
from tests.unit.tiny_tokenizer import tiny_tokenizer

torch.set_num_threads(1)
CONF = Path(__file__).parents[2] / "conf"
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [8, 8], [11, 40, 7]]


def make_run(folder: Path, prompts: list[list[int]]) -> Path:
    """A finished run: config, prepared.json, prompts and a checkpoint of a drafter fitted to the first prompt."""
    tree = yaml.safe_load((CONF / "config.yaml").read_text())
    del tree["defaults"]
    groups = dict.fromkeys(("target", "drafter", "data"), "quickstart") | {"optim": "adamw", "cluster": "auto"}
    for group, name in groups.items():
        tree[group] = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    tree["target"] |= {"path": str(save_tiny("qwen3", folder / "target")), "num_features": 2}
    tree["drafter"] |= {"block_size": 5}
    tree["data"]["cache_dir"] = str(folder)
    tree["eval"] |= {"num_prompts": 3, "max_new_tokens": 24}
    tiny_tokenizer().save_pretrained(tree["target"]["path"])
    config = parse(tree)
    (folder / "config.json").write_text(json.dumps(tree))
    target = describe_target(config.target).model_copy(update={"eos_token_ids": ()})
    spec = drafter_spec(config.drafter, target, VOCAB - 1)
    Prepared(
        target=target, drafter=spec, data_dir=str(folder), num_packs=1, num_steps=1, row_tokens=8, rows_per_pack=1,
        anchors_per_row=1, num_prompts=len(prompts), report={},
    ).write(folder / "prepared.json")  # fmt: skip
    write_prompts(folder, [Prompt(tuple(ids), f"prompt {ids}") for ids in prompts])
    drafter = Drafter(spec)
    drafter.init_weights(0)
    fit_drafter(drafter, load_full_target(target, config.target, "cpu"), PROMPTS[0])
    for step in (3, 12):
        weights = {name: w * (step == 12) for name, w in drafter.state_dict().items()}
        checkpoint.write(folder / "checkpoints" / f"step_{step:08d}", step, weights, {"x": torch.zeros(1)}, {})
    return folder


def test_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, PROMPTS)
    assert main([str(run)]) == 0
    found = json.loads((run / "eval.json").read_text())
    assert (found["step"], found["prompts"], found["greedy_identical"], found["differences"]) == (12, 3, 1.0, 0)
    assert found["tokens"] == 3 * 24 and found["dtype"] == "float32"
    assert found["tau_mean"] > 1.3 > found["tau_untrained"] >= 1.0
    assert found["tau_zero_features"] < found["tau_mean"]
    committed = sum(int(n) * count for n, count in found["histogram"].items())
    assert committed == 3 * 23
    assert found["tau_pooled"] == pytest.approx(committed / sum(found["histogram"].values()))
    assert 0 <= found["repetition_rate"] <= 1
    assert found["sample"]["prompt"] in {f"prompt {ids}" for ids in PROMPTS}
    assert sum(count for _, count in found["sample"]["runs"]) == 24 and found["sample"]["runs"][0][1] == 1
    _, weights = load_exported(found["export"])
    assert weights["norm.weight"].dtype == torch.bfloat16 and weights["norm.weight"].any()
    assert "3 of 3 prompts" in capsys.readouterr().out


def test_no_prompts_still_exports(tmp_path: Path) -> None:
    run = make_run(tmp_path, [])
    assert main([str(run), "evaluator-0.1"]) == 0
    assert json.loads((run / "eval.json").read_text())["tau_mean"] is None
    load_exported(run / "export")


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "run.dir" in capsys.readouterr().err
    run = make_run(tmp_path, PROMPTS)
    weights = run / "checkpoints" / "step_00000012" / "drafter.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert main([str(run)]) == 1
    assert "drafter.safetensors" in capsys.readouterr().err
    assert not (run / "export").exists() and not (run / "eval.json").exists()
    (run / "checkpoints").rename(run / "gone")
    assert main([str(run)]) == 2
    assert "run.dir: no checkpoint" in capsys.readouterr().err


def test_the_gap_of_a_difference(tmp_path: Path) -> None:
    config = target_config(save_tiny("qwen3", tmp_path))
    target = load_full_target(describe_target(config), config, "cpu")
    logits = target.forward(torch.tensor([5, 6, 7]), target.new_cache())[0][-1]
    best, second = logits.topk(2).indices.tolist()
    answers = Answers([Decoded((6, 7, best), ()), Decoded((1,), ())], [Decoded((6, 7, second), ()), Decoded((1,), ())])
    differences = first_differences([[5], [5]], answers)
    assert differences == [([5, 6, 7], best, second)]
    assert largest_gap(target, differences) == pytest.approx(float(logits[best] - logits[second]), abs=1e-5)


def test_a_sample_is_cut_where_each_forward_ended() -> None:
    tokenizer = tiny_tokenizer()
    ids = tuple(tokenizer.encode("the blue sky is über grün"))
    single = len(tokenizer.encode("the blue sky is ")) + 1
    answer = Decoded(ids, (2, single - 3, len(ids) - single))
    runs = runs_of(answer, tokenizer)
    assert "".join(text for text, _ in runs) == "the blue sky is über grün"
    assert [count for _, count in runs] == [1, *answer.accepted_lengths]
    assert runs[-1][0].startswith("ü"), "the first byte of a character waits for the second"
    assert typical([Decoded((1,), ()), answer]) == 1 and typical([Decoded((1,), ())]) is None
