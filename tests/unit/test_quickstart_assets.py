"""The shipped target, prompts and answers are what they claim to be, and so are the pieces that build them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from dfl_mp import quickstart
from dfl_mp.quickstart import answers, corpus, pairs, pretrain, tokenizer

torch.set_num_threads(1)
ROW_TOKENS = 256


@pytest.fixture(scope="module")
def tok() -> Any:
    return AutoTokenizer.from_pretrained(quickstart.TARGET, local_files_only=True)


@pytest.fixture(scope="module")
def target() -> Any:
    return AutoModelForCausalLM.from_pretrained(quickstart.TARGET, dtype=torch.float32, local_files_only=True).eval()


@pytest.fixture(scope="module")
def conversations() -> list[tuple[str, str]]:
    rows = [json.loads(line)["messages"] for line in quickstart.TRAIN.read_text().splitlines()]
    assert all([m["role"] for m in row] == ["user", "assistant"] for row in rows)
    return [(row[0]["content"], row[1]["content"]) for row in rows]


@pytest.fixture(scope="module")
def held() -> list[str]:
    rows = [json.loads(line)["turns"] for line in quickstart.HELDOUT.read_text().splitlines()]
    assert all(len(turns) == 1 for turns in rows)
    return [turns[0] for turns in rows]


def test_all_assets_together_are_small() -> None:
    assert sum(path.stat().st_size for path in quickstart.ROOT.rglob("*") if path.suffix != ".pyc") < 12e6


def test_target_is_a_small_tied_qwen3(target: Any, tok: Any) -> None:
    assert isinstance(target, Qwen3ForCausalLM)
    assert 2e6 < target.num_parameters() < 6e6
    assert target.config.tie_word_embeddings and target.config.vocab_size == len(tok)
    assert target.generation_config.eos_token_id == tok.eos_token_id


def test_template_is_chatml(tok: Any) -> None:
    asked = tok.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True)
    assert asked == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" == tokenizer.render("Hi")
    both = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]
    assert tok.apply_chat_template(both, tokenize=False) == tokenizer.render("Hi", "Yes.")


def test_special_tokens_are_distinct_and_the_mask_token_is_never_in_the_data(
    tok: Any, conversations: list[tuple[str, str]], held: list[str]
) -> None:
    assert tok.mask_token == "<|mask|>"
    assert len({tok.mask_token_id, tok.pad_token_id, tok.eos_token_id}) == 3
    assert tok.unk_token is None
    texts = [tokenizer.render(*pair) for pair in conversations] + [tokenizer.render(prompt) for prompt in held]
    assert all(tok.mask_token_id not in ids for ids in tok(texts)["input_ids"])


def test_conversations_fit_a_row_and_answers_neither_loop_nor_are_cut(
    tok: Any, conversations: list[tuple[str, str]]
) -> None:
    assert len(conversations) >= 1000
    for prompt, answer in conversations:
        ids = tok(answer)["input_ids"]
        assert answers.repeated(ids) <= answers.MAX_REPEATED, answer
        assert len(tok(tokenizer.render(prompt, answer))["input_ids"]) <= ROW_TOKENS, prompt


def test_held_out_prompts_are_not_trained_on(conversations: list[tuple[str, str]], held: list[str]) -> None:
    trained = {" ".join(prompt.lower().split()) for prompt, _ in conversations}
    assert len(trained) == len(conversations)
    assert len(held) == len(set(held)) >= 60
    assert not trained & {" ".join(prompt.lower().split()) for prompt in held}


@pytest.mark.parametrize("row", [0, 1])
def test_answers_are_the_stored_targets_own_greedy_output(
    row: int, tok: Any, target: Any, conversations: list[tuple[str, str]]
) -> None:
    prompt, answer = conversations[row]
    ids = tok(tokenizer.render(prompt), return_tensors="pt")
    with torch.no_grad():
        found = target.generate(**ids, max_new_tokens=200, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert found.tolist() == [*tok(answer)["input_ids"], tok.eos_token_id]


def test_batched_greedy_with_left_padding_equals_one_prompt_at_a_time() -> None:
    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Qwen3Config(vocab_size=40, num_key_value_heads=1, head_dim=16, eos_token_id=2, pad_token_id=0, **small)
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(std=1.0)
    prompts = [[5, 6, 7], [9], [4, 8, 15, 16, 23, 3]]
    together = answers.answer_all(model, prompts, max_new=12, batch=3)
    alone = [answers.greedy(model, [prompt], 12, 2)[0] for prompt in prompts]
    assert [a.tokens for a in together] == [a.tokens for a in alone]
    assert [a.finished for a in together] == [a.finished for a in alone]
    assert all(abs(a.margin - b.margin) < 1e-4 for a, b in zip(together, alone, strict=True))


def test_repeated_counts_four_grams() -> None:
    assert answers.repeated([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(0.2)
    assert answers.repeated([7] * 20) > answers.MAX_REPEATED
    assert answers.repeated([1, 2]) == 0.0


def test_every_document_is_in_one_batch_of_an_epoch_and_batches_are_bounded() -> None:
    documents = [[i] * (1 + i % 9) for i in range(50)]
    source, seen = pretrain.batches(documents, 40, random.Random(0)), []
    while len(seen) < 50:
        tokens_BS = next(source)
        assert tokens_BS.numel() <= 40
        seen += tokens_BS[:, 0].tolist()
    assert sorted(seen) == list(range(50))


def test_training_lowers_the_loss_and_leaves_bfloat16_values() -> None:
    torch.manual_seed(0)
    model = pretrain.new_target(64, pad=0, eos=2, max_length=64)
    documents = [[1, 10 + i % 5, 20, 21, 22, 2] for i in range(20)]
    before = pretrain.mean_loss(model, documents, 256)
    pretrain.train(model, documents, documents, pretrain.Recipe(0, 12, 120, 1e-3, evaluations=2))
    assert pretrain.mean_loss(model, documents, 256) < before - 0.5
    assert all(torch.equal(p, p.bfloat16().float()) for p in model.parameters())


def test_a_tokenizer_gives_back_every_text() -> None:
    made = tokenizer.train_tokenizer(["def f(a, b):\n    return a", "Return the   sum of 12 things."] * 3, 300, 64)
    for text in ["def g(x_1):\n\n    '''é — tab\t'''\n", "  two spaces", "12345"]:
        assert made.decode(made(text)["input_ids"]) == text


def test_a_docstring_is_cut_before_its_sections() -> None:
    doc = "Join two paths into one.\n\n    More about it.\n\n    Parameters\n    ----------\n    a : str\n"
    assert corpus.clean(doc) == "Join two paths into one.\n\nMore about it."
    assert (
        corpus.clean("Too short.") == corpus.clean(None) == corpus.clean("Ein Satz für ein anderes Wörterbuch.") == ""
    )


def test_methods_of_one_name_are_on_one_side() -> None:
    assert corpus.split_of("Linear.forward") == corpus.split_of("Conv2d.forward")
    sides = [corpus.split_of(f"name_{i}") for i in range(1000)]
    assert 15 < sides.count("heldout") < 80 < sides.count("prompt") < 350


def test_pairs_state_parameters_and_call() -> None:
    entry = corpus.Entry(
        "Path.glob", "pathlib", "method", "pattern, *, recurse=True, **kw", "Iterate over all that match."
    )
    made = {pair.task: pair for pair in pairs.pairs_of(entry)}
    assert made["parameters"].answer == (
        "`Path.glob` takes 3 parameters:\n- `pattern`: required\n- `recurse`: optional, `True` by default\n"
        "- `**kw`: any further keyword arguments"
    )
    assert "path = Path()\nresult = path.glob(pattern, recurse=True, **kw)" in made["call"].answer
    assert "def glob(self, pattern, *, recurse=True, **kw):" in made["document"].answer
    assert made["help"].answer.endswith(f"\n\n{made['parameters'].answer}\n\n{made['call'].answer}")
    assert "complete" not in made
