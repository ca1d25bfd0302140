"""How the bundled models are made: openings, filter, rows, and a loop that can be interrupted."""

from __future__ import annotations

import json
import random
import re

import pytest
import torch

from minivllm import LLM
from training import corpus, learning
from training.card import write_checkpoint
from training.corpus import Rows, learn_vocabulary, read_stories
from training.learning import Recipe, learn, one_step, share_of_peak
from training.model import SHAPES, Model, Shape
from training.openings import opening
from training.stories import EXAMPLES, fit_part, fit_sentences

TOY = Shape(hidden=32, layers=2, heads=4, kv_heads=2, mlp=48, vocab=300, positions=64)


def test_an_opening_is_plain_english_and_its_seed_gives_it_again():
    rng, again = random.Random(3), random.Random(3)
    for _ in range(3000):
        text = opening(rng)
        assert text == opening(again)
        assert re.fullmatch(r"[A-Z\"][A-Za-z ,.?\"']+[.?\"]", text), text
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", text), text
        assert text.count('"') % 2 == 0
    assert len({opening(rng) for _ in range(3000)}) > 2700


@pytest.mark.parametrize("story", EXAMPLES)
def test_the_examples_pass_their_own_filter(story):
    assert fit_part(story) == story


GOOD = "Tom has a hat. The hat is red. He likes it a lot. His dog likes it too. They play."


@pytest.mark.parametrize(
    ("story", "kept"),
    [
        (GOOD, GOOD),
        (GOOD.replace(" ", "\n", 3), GOOD),
        (f"{GOOD} And then he went", GOOD),
        (f"{GOOD} The hat is red. He sings.", GOOD),
        (f"{GOOD} His dog likes it too, he said. He sings.", GOOD),
        (f"{GOOD} A hat, a hat, that hat, that hat, that is that.", GOOD),
        (f'{GOOD} "Come here. He sings.', GOOD),
        ("Tom has a hat. The hat is red. He likes it. He sings.", None),
        (f"{GOOD} He has a gun.", None),
        (f"{GOOD} 1 + 1 is 2.", None),
        (f"{GOOD} *He sings.*", None),
        ("", None),
    ],
)
def test_a_story_is_kept_up_to_where_it_repeats_itself(story, kept):
    assert fit_part(story) == kept


def test_a_story_is_kept_up_to_where_it_repeats_what_was_shown():
    shown = "Anna sees a dog. It runs, and Anna runs behind it."
    assert fit_part(f"{GOOD} It runs, and Anna runs. He sings.", shown) == GOOD
    assert fit_part(f"{GOOD} It runs, and Tom runs.", shown) == f"{GOOD} It runs, and Tom runs."


@pytest.mark.parametrize("seed", range(30))
def test_a_story_given_up_at_the_end_of_a_sentence_loses_nothing(seed):
    """Word for word, as the engine writes: once nothing more fits, nothing more is kept."""
    rng = random.Random(seed)
    common = ["the dog", "Tom", "sees", "a red hat", "and", "he", "sings", "gun", "+", '"Come']
    text, stopped_at = "Tom has a hat.", None
    for _ in range(60):
        text += rng.choices([" " + rng.choice(common), ".", '."'], [8, 2, 1])[0]
        if stopped_at is None and text[-1] in '.!?"' and fit_sentences(text)[1]:
            stopped_at = fit_part(text)
            break
    for _ in range(60):
        text += rng.choices([" " + rng.choice(common), ".", '."'], [8, 2, 1])[0]
    if stopped_at is not None:
        assert fit_part(text) in (stopped_at, None)


def test_what_is_kept_is_kept_again():
    rng = random.Random(5)
    words = [
        "the",
        "dog",
        "Tom",
        "sees",
        "a",
        "red",
        "hat",
        "and",
        "he",
        "sings",
        ".",
        "!",
        '"',
        "?",
    ]
    kept = 0
    for _ in range(3000):
        text = " ".join(rng.choices(words, k=60)).replace(" .", ".").replace(" !", "!")
        part = fit_part(text)
        assert part is None or fit_part(part) == part
        kept += part is not None
    assert kept > 20


def write_shards(folder, stories):
    folder.mkdir()
    for number in range(3):
        part = stories[number::3]
        corpus_json = {"seconds": 1.0, "stories": part}
        (folder / f"{number:04}.json").write_text(json.dumps(corpus_json))


def test_doubles_and_rare_words_are_left_out_and_one_in_fifty_is_held_out(tmp_path):
    stories = [f"{opening(random.Random(i))} The end." for i in range(400)]
    write_shards(tmp_path / "stories", [*stories, *stories[:9], "A zyx came. The end."])
    learned, held_out = read_stories(tmp_path / "stories")
    both = learned + held_out
    assert len(set(both)) == len(both) and not set(learned) & set(held_out)
    assert "A zyx came. The end." not in both and set(both) <= set(stories)
    assert len(held_out) == -(-len(both) // corpus.HELD_OUT)
    with pytest.raises(ValueError, match="holds no stories"):
        read_stories(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def stories():
    return [f"{opening(random.Random(i))} {opening(random.Random(-i))}" for i in range(600)]


@pytest.fixture
def rows(stories, monkeypatch):
    monkeypatch.setattr(corpus, "VOCAB_SIZE", TOY.vocab)
    monkeypatch.setitem(learning.SHAPES, "toy", TOY)
    monkeypatch.setattr(learning, "ROWS_A_STEP", 4)
    return Rows(stories, learn_vocabulary(stories), 48)


def test_a_row_begins_with_a_story_and_stories_follow_whole(rows):
    ids = rows.epoch(0)
    assert ids.shape[1] == 49 and len(ids) > 100
    starts = {tuple(story[:5]) for story in rows.stories}
    for row in ids.tolist():
        assert tuple(row[:5]) in starts
        for end in (i for i, token in enumerate(row[:-5]) if token == rows.end):
            assert tuple(row[end + 1 : end + 6]) in starts
    assert not torch.equal(rows.epoch(1)[:5], ids[:5])
    assert torch.equal(rows.epoch(0), ids)


@pytest.mark.parametrize("name", SHAPES)
def test_the_model_that_learns_is_the_model_that_transformers_and_the_engine_read(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    from training.card import read_model

    torch.manual_seed(1)
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 9))) for _ in range(3000)]
    tokenizer = learn_vocabulary([" ".join(words)])
    written = Model(SHAPES[name])
    torch.nn.init.normal_(written.embed_tokens.weight, std=0.2)
    write_checkpoint(name, written, tokenizer, tmp_path / name)
    model = read_model(name, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32)
    ids = torch.tensor([tokenizer.encode("Once upon a time there was a small dog.")])
    with torch.no_grad():
        torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)
    llm = LLM(str(tmp_path / name), dtype="float32", device="cpu")
    from minivllm import SamplingParams

    (out,) = llm.generate([ids[0].tolist()], SamplingParams(temperature=0, max_tokens=5))
    assert out.outputs[0].token_ids[0] == int(model(ids)[0, -1].argmax())


def test_the_loss_falls_and_a_run_in_two_parts_ends_as_one_in_a_single_part(
    rows, tmp_path, monkeypatch
):
    monkeypatch.setitem(learning.RECIPES, "toy", Recipe(epochs=2, peak=1e-2))
    monkeypatch.setattr(learning, "WARMUP", 5)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    a, record = learn("toy", rows, rows, whole, until=30)
    learn("toy", rows, rows, parts, until=13)
    b, again = learn("toy", rows, rows, parts, until=30)
    for key, tensor in a.state_dict().items():
        torch.testing.assert_close(tensor, b.state_dict()[key], rtol=1e-5, atol=1e-6)
    assert record.held_out[-1][1] == pytest.approx(again.held_out[-1][1], abs=1e-4)
    assert record.held_out[-1][1] < 4.5 < learning.judge(Model(TOY), rows.epoch(0)[:8])


def test_a_teacher_pulls_towards_what_it_says(rows):
    torch.manual_seed(2)
    batch, teacher = rows.epoch(0)[:4], Model(TOY)
    torch.nn.init.normal_(teacher.embed_tokens.weight, std=0.5)

    def apart_after(steps_with):
        torch.manual_seed(3)
        model = Model(TOY)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(10):
            one_step(model, steps_with, batch)
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            mine, wanted = (m(batch[:, :-1]).log_softmax(-1) for m in (model, teacher))
        return (wanted.exp() * (wanted - mine)).sum(-1).mean()

    assert apart_after(teacher) < 0.8 * apart_after(None)


def test_the_learning_rate_rises_once_and_falls_once():
    rates = [share_of_peak(step, 1000) for step in range(1, 1001)]
    top = rates.index(max(rates))
    assert rates[top] == 1 and top + 1 == learning.WARMUP
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] == pytest.approx(0.01)
