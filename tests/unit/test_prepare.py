"""The prepare role from a run's config to its packs and prompts, on a target that is a config and a tokenizer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import LlamaConfig

from dfl_mp.config import TargetConfig
from dfl_mp.data.cache import staged
from dfl_mp.data.conversations import BadRow
from dfl_mp.data.mask_token import choose_mask_token
from dfl_mp.data.packs import PackStore
from dfl_mp.data.preview import preview
from dfl_mp.data.prompts import load_prompts, parse_prompt
from dfl_mp.errors import ConfigError
from dfl_mp.model.target_spec import describe_target
from dfl_mp.roles.prepare import load_tokenizer, main
from dfl_mp.specs import EndNames, Prepared, TargetSpec
from tests.unit.tiny_targets import target_config
from tests.unit.tiny_tokenizer import END, PAD, SPARE, START, chat, tiny_tokenizer, write_jsonl

CONF = Path(__file__).parents[2] / "conf"
CHATS = [{"messages": chat(f"What is {i}?", "It is five, said the teacher. " * (1 + i % 3))} for i in range(40)]


def save_target(folder: Path, vocab_size: int = 512, **options: Any) -> Path:
    tokenizer = tiny_tokenizer(**options)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 8, "num_attention_heads": 2}
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=vocab_size,
        max_position_embeddings=128,
        eos_token_id=tokenizer.eos_token_id,
        **sizes,
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder whose config names a tiny target, 40 chats and 12 prompts."""
    save_target(tmp_path / "target")
    write_jsonl(tmp_path / "chats.jsonl", CHATS)
    write_jsonl(tmp_path / "prompts.jsonl", [{"turns": [f"Which sky is {i}?", "and then?"]} for i in range(12)])
    folder = tmp_path / "run"
    folder.mkdir()
    configure(folder)
    return folder


def configure(run: Path, *overrides: str) -> None:
    base = run.parent
    settings = [
        "experiment=qwen3_8b",
        f"target.path={base / 'target'}",
        "target.num_features=2",
        "drafter.mask_token_id=null",
        f"data.path={base / 'chats.jsonl'}",
        f"data.prompts={base / 'prompts.jsonl'}",
        f"data.cache_dir={base / 'cache'}",
        "data.row_tokens=96",
        "data.rows_per_pack=2",
        "train.packs_per_step=4",
        "train.max_steps=3",
        "eval.num_prompts=5",
        "eval.max_new_tokens=8",
    ]
    with initialize_config_dir(str(CONF), version_base=None):
        tree = OmegaConf.to_container(compose("config", [*settings, *overrides]), resolve=True)
    (run / "config.json").write_text(json.dumps(tree))


def prepared(run: Path) -> Prepared:
    """Of a new run."""
    (run / "prepared.json").unlink(missing_ok=True)
    assert main([str(run)]) == 0
    return Prepared.read(run / "prepared.json")


def test_a_run_finds_its_packs_and_prompts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = prepared(run)
    said = capsys.readouterr().out
    store = PackStore.open(Path(result.data_dir))
    assert (result.num_packs, result.num_steps, len(store)) == (12, 3, 12)
    assert (result.rows_per_pack, result.row_tokens) == (2, 96) == store[0].tokens_RS.shape
    assert result.anchors_per_row == store[11].anchor_RN.shape[1]
    assert result.report["documents"] == 40
    assert 0.8 < result.report["fill"] <= 1
    for part in (
        "40 documents",
        "of them trained",
        "full",
        "anchor slots a row",
        "mask token ",
        "5 prompts held out",
    ):
        assert part in said
    tokenizer = load_tokenizer(_target(run), result.target.path)
    assert result.drafter.mask_token_id == len(tokenizer) < result.target.vocab_size
    prompts = load_prompts(Path(result.data_dir))
    assert [tokenizer.decode(p.ids) for p in prompts] == [
        f"<|im_start|>user\n{p.text}<|im_end|>\n<|im_start|>assistant\n" for p in prompts
    ]
    assert [p.text for p in prompts] == [f"Which sky is {i}?" for i in range(5)]
    shown = preview(store, tokenizer, 0).replace("▸", "")
    assert "<|im_start|>assistant\n⟦It is five, said the teacher. " in shown
    assert shown.endswith("<|im_end|>⟧\n")


def _target(run: Path) -> TargetConfig:
    return TargetConfig.model_validate(json.loads((run / "config.json").read_text())["target"])


def test_what_is_the_same_is_found_again_and_what_differs_is_made(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = prepared(run)
    capsys.readouterr()
    stamp = os.stat(Path(first.data_dir) / "tokens.npy").st_mtime_ns
    assert prepared(run) == first
    assert "found in the cache" in capsys.readouterr().out
    assert os.stat(Path(first.data_dir) / "tokens.npy").st_mtime_ns == stamp
    folders = {first.data_dir}
    for override in ("train.seed=1", "data.row_tokens=64", "train.max_steps=4", "eval.num_prompts=6"):
        configure(run, override)
        folders.add(prepared(run).data_dir)
    configure(run, "optim.lr=0.5")
    assert prepared(run).data_dir == first.data_dir
    write_jsonl(run.parent / "chats.jsonl", CHATS[1:])
    folders.add(prepared(run).data_dir)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{# changed #}" + tokenizer.chat_template
    tokenizer.save_pretrained(run.parent / "target")
    folders.add(prepared(run).data_dir)
    assert len(folders) == 7
    assert sorted(map(str, (run.parent / "cache").iterdir())) == sorted(folders)


def test_a_drafter_is_told_what_only_transformers_knows(run: Path) -> None:
    file = run.parent / "target" / "config.json"
    values = json.loads(file.read_text())
    rope = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 32}
    file.write_text(json.dumps({**values, "rope_parameters": rope, "tie_word_embeddings": True}))
    result = prepared(run)
    assert result.target.ends == EndNames(embed="model.embed_tokens.weight", head="lm_head.weight", tied=True)
    found = result.drafter.frequencies
    assert found is not None and len(found.inverse) == result.drafter.head_dim // 2 and found.scale > 1


def test_a_damaged_cache_is_made_anew(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = prepared(run)
    for name in ("tokens.npy", "summary.json"):
        whole = (Path(first.data_dir) / name).read_bytes()
        (Path(first.data_dir) / name).write_bytes(whole[:-20])
        assert prepared(run) == first
        assert f"{name}:" in capsys.readouterr().out
        assert (Path(first.data_dir) / name).read_bytes() == whole


def test_a_failure_leaves_nothing_and_a_killed_ones_leavings_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    orphan, alive = (tmp_path / f".staging-abc-{pid}" for pid in (dead.pid, os.getppid()))
    for left in (orphan, alive):
        left.mkdir()
    with pytest.raises(KeyError), staged(tmp_path / "abc") as stage:
        (stage / "half").write_text("x")
        assert not orphan.exists()
        raise KeyError
    assert list(tmp_path.iterdir()) == [alive]


def test_the_second_of_two_makers_keeps_the_firsts_folder(tmp_path: Path) -> None:
    with staged(tmp_path / "abc") as stage:
        (stage / "file").write_text("second")
        (tmp_path / "abc").mkdir()
        (tmp_path / "abc" / "file").write_text("first")
    assert (tmp_path / "abc" / "file").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["abc"]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("data.path=/nowhere/chats.jsonl", "data.path: no such file: /nowhere/chats.jsonl"),
        ("data.prompts=/nowhere/prompts.jsonl", "data.prompts: no such file: /nowhere/prompts.jsonl"),
        ("target.path=/nowhere/target", "target.path"),
        ("drafter.mask_token_id=512", "drafter.mask_token_id: 512 is no row"),
        ("drafter.mask_token_id=2", "drafter.mask_token_id: 2 is"),
        ("eval.max_new_tokens=127", "data.prompts: no usable prompt"),
        ("eval.max_new_tokens=128", "eval.max_new_tokens: 128 leave no room"),
        ("drafter.head_dim=7", "drafter.head_dim: 7 is odd"),
        ("data.cache_dir=/proc/nowhere", "data.cache_dir: /proc/nowhere: "),
        ("+data.nonsense=1", "data.nonsense: unknown field"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_2(run: Path, capsys, override: str, says: str) -> None:
    configure(run, override)
    assert main([str(run)]) == 2
    _, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert err.startswith("error: ") and says in err
    assert not (run / "prepared.json").exists()
    assert not list(run.parent.glob("cache/*"))


def test_no_run_folder_and_no_config_are_the_users_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main([str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err


def test_data_too_small_for_one_step_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(run, "train.max_steps=null", "train.epochs=1", "train.packs_per_step=100")
    assert main([str(run)]) == 2
    assert "one step takes 200 (data.rows_per_pack x train.packs_per_step)" in capsys.readouterr().err


def test_epochs_decide_without_max_steps(run: Path) -> None:
    configure(run, "train.max_steps=null", "train.epochs=5")
    result = prepared(run)
    assert result.num_packs == result.num_steps * 4
    assert 4 < result.report["epochs"] <= 5


def test_bad_rows_cut_rows_and_prompts_of_the_training_data_are_counted(run: Path, capsys) -> None:
    rows = [*CHATS, {"text": 1}, {"messages": chat("long " * 60, "x y")}, {"messages": chat("q", "five " * 200)}]
    write_jsonl(run.parent / "chats.jsonl", rows)
    prompts = [{"prompt": " What is 3?\n"}, {"prompt": "Which?"}, {"turns": []}, {"messages": chat("Green?", "no")}]
    write_jsonl(run.parent / "prompts.jsonl", prompts)
    result = prepared(run)
    report, said = result.report, capsys.readouterr().out
    assert report["rows"]["skipped"] == {
        "neither messages nor conversations": 1,
        "no trained pair of tokens in its first 96": 1,
    }
    assert "line 41: neither messages nor conversations" in said
    assert report["cut_documents"] == 1 and report["cut_tokens"] > 50
    assert result.num_prompts == 2
    assert report["prompts"]["first"][0] == "line 1: also in the training data (What is 3?)"
    assert [p.text for p in load_prompts(Path(result.data_dir))] == ["Which?", "Green?"]


def test_without_prompts_there_are_none(run: Path) -> None:
    configure(run, "data.prompts=null")
    result = prepared(run)
    assert result.num_prompts == 0
    assert load_prompts(Path(result.data_dir)) == []


def test_a_tokenizer_that_exceeds_the_embedding_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_target(run.parent / "target", vocab_size=300)
    assert main([str(run)]) == 2
    assert "its embedding has 300 rows" in capsys.readouterr().err


def test_a_target_without_template_or_tokenizer_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = run.parent / "target"
    for name in ("chat_template.jinja", "tokenizer.json"):
        (target / name).unlink()
        assert main([str(run)]) == 2
        err = capsys.readouterr().err.splitlines()[-1]
        assert err.startswith("error: target.path: ")


def test_the_conversation_up_to_its_first_question_is_the_prompt() -> None:
    turns = chat("a?", "b", "c?", system="s")
    sharegpt = [{"from": turn["role"], "value": turn["content"]} for turn in turns]
    assert parse_prompt({"messages": turns}) == parse_prompt({"conversations": sharegpt}) == chat("a?", system="s")


@pytest.mark.parametrize("row", [{}, {"turns": [3]}, {"messages": chat("", "b")}, {"messages": chat("a", "b")[1:]}])
def test_a_row_without_a_question_is_no_prompt(row: dict[str, Any]) -> None:
    with pytest.raises(BadRow):
        parse_prompt(row)


def target_spec(folder: Path, vocab_size: int, **options: Any) -> TargetSpec:
    path = save_target(folder, vocab_size, **options)
    return describe_target(target_config(path, dtype="float32", num_features=2))


def test_the_order_of_choice_of_the_mask_token(tmp_path: Path) -> None:
    with_mask = {"mask_token": "<|mask|>"}
    reserved = {"additional_special_tokens": [START, "<|tool|>", SPARE, "<|other|>"]}
    spec = target_spec(tmp_path / "a", 512, **with_mask)
    masked, plain, spare = tiny_tokenizer(**with_mask), tiny_tokenizer(), tiny_tokenizer(**reserved)
    tight = spec.model_copy(update={"vocab_size": len(spare)})
    used = set(range(256))

    def choose(explicit: int | None, draft: int | None, tokenizer: Any, target: TargetSpec = spec) -> tuple[int, str]:
        return choose_mask_token(explicit, draft, tokenizer, target, used)

    assert choose(500, 499, masked) == (500, "as configured")
    assert choose(None, 499, masked)[0] == 499
    assert choose(None, None, masked)[0] == masked.mask_token_id
    assert choose(None, None, plain)[0] == len(plain)
    assert choose(None, None, spare)[0] == len(spare)
    chosen, why = choose(None, None, spare, tight)
    assert spare.decode([chosen]) == SPARE and SPARE in why
    used.add(chosen)
    assert spare.decode([choose(None, None, spare, tight)[0]]) == "<|other|>"
    assert "although the data holds it" in choose(100, None, plain)[1]
    with pytest.raises(ConfigError, match=r"drafter\.mask_token_id: the tokenizer has no mask token"):
        choose(None, None, plain, spec.model_copy(update={"vocab_size": len(plain)}))


@pytest.mark.parametrize("token", [PAD, END, "<|unk|>"])
def test_pad_eos_and_unk_are_never_the_mask(tmp_path: Path, token: str) -> None:
    tokenizer = tiny_tokenizer(unk_token="<|unk|>", mask_token=token)
    spec = target_spec(tmp_path, 512)
    taken = tokenizer.convert_tokens_to_ids(token)
    assert choose_mask_token(None, None, tokenizer, spec, ())[0] == len(tokenizer)
    with pytest.raises(ConfigError, match=r"drafter\.mask_token_id"):
        choose_mask_token(taken, None, tokenizer, spec, ())
    full = spec.model_copy(update={"vocab_size": len(tokenizer)})
    with pytest.raises(ConfigError, match=r"drafter\.mask_token_id"):
        choose_mask_token(None, None, tokenizer, full, ())


def other_chats(base: Path) -> None:
    write_jsonl(base / "chats.jsonl", [*CHATS[:-1], {"messages": chat("What is 39?", "It is green.")}])


def more_chats(base: Path) -> None:
    write_jsonl(base / "chats.jsonl", CHATS * 2)


def other_tokenizer(base: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("m['role']", "m['role'].upper()")
    tokenizer.save_pretrained(base / "target")


def other_target(base: Path) -> None:
    file = base / "target" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rms_norm_eps": 0.5}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_chats, ("data.path: ", "chats.jsonl has changed since the run was begun", "the packs differ")),
        (more_chats, ("data.path: ", "chats.jsonl has changed since", "num_steps was", "num_packs was")),
        (other_tokenizer, ("target.path: the tokenizer of ", "/target has changed since", "the packs differ")),
        (other_target, ("target.path: the config of ", "has changed since", "rms_norm_eps was 1e-06, now 0.5")),
    ],
)
def test_a_run_is_not_gone_on_with_on_other_data(run: Path, capsys, change, says: tuple[str, ...]) -> None:
    configure(run, "train.max_steps=null")
    prepared(run)
    before = (run / "prepared.json").read_bytes()
    change(run.parent)
    capsys.readouterr()
    assert main([str(run)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith(f"error: {says[0]}") and all(part in err for part in says)
    assert (run / "prepared.json").read_bytes() == before
    assert [p.name for p in run.iterdir() if p.name.startswith(".")] == []


def test_a_run_is_gone_on_with_where_the_packs_are_the_same(run: Path) -> None:
    """Other prompts, another cache, a blank line at the end of the data."""
    first = prepared(run)
    with (run.parent / "chats.jsonl").open("a") as file:
        file.write("\n")
    configure(run, "data.prompts=null", f"data.cache_dir={run.parent / 'other'}", "eval.max_new_tokens=9")
    assert main([str(run)]) == 0
    second = Prepared.read(run / "prepared.json")
    assert second.packs == first.packs is not None
    assert (second.num_prompts, first.num_prompts) == (0, 5) and second.data_dir != first.data_dir


def test_a_run_of_which_less_is_known_is_still_compared(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = prepared(run)
    old = first.model_copy(update={"packs": None, "sources": None})
    old.write(run / "prepared.json")
    assert main([str(run)]) == 0
    old.model_copy(update={"anchors_per_row": 512}).write(run / "prepared.json")
    assert main([str(run)]) == 2
    assert "data.path: what is made of" in (err := capsys.readouterr().err) and "anchors_per_row was 512" in err
    (run / "prepared.json").write_text("{}")
    assert main([str(run)]) == 2
    assert "run.dir: cannot read" in capsys.readouterr().err


def test_a_fresh_process_gives_the_same_packs_and_exit_codes(run: Path) -> None:
    first = prepared(run)
    command = [sys.executable, "-m", "dfl_mp.roles.prepare", str(run)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CONF.parent)}
    configure(run, f"data.cache_dir={run.parent / 'other'}")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    second = Prepared.read(run / "prepared.json")
    assert second.data_dir != first.data_dir
    a, b = PackStore.open(Path(first.data_dir)), PackStore.open(Path(second.data_dir))
    for n in range(len(a)):
        assert all(np.array_equal(x, y) for x, y in zip(vars(a[n]).values(), vars(b[n]).values(), strict=True))
