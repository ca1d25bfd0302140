"""Our own BPE against the `tokenizers` library, the `regex` package and counting by brute force."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import unicodedata
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from vocabularies import GPT2_WORDS, byte_alphabet, nasty_texts, plain_byte_level

from minivllm.tokenizer import bpe_training
from minivllm.tokenizer.bpe import BPETokenizer, cut_at, kind_of, merge, split_words
from minivllm.tokenizer.bpe_file import load_bpe, save_bpe, spell, tokenizer_json, unspell
from minivllm.tokenizer.bpe_training import PairIndex, count_words, join, learn_merges, train
from minivllm.tokenizer.tokenizer import load_tokenizer

ROOT = Path(__file__).parent.parent
TEXTS = nasty_texts(600, seed=5)
CORPUS = "".join(nasty_texts(800, seed=6)) + 40 * "The cat's hat, the rat's bat. That is that! "
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_end|><|im_end|>"]


@pytest.fixture(scope="module")
def trained():
    return train(CORPUS, 700, SPECIALS, bos_token=SPECIALS[0], eos_token="<|im_end|>")


# Words.


def test_every_character_is_of_the_kind_that_the_regex_package_says():
    known = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs")]
    text = "".join(known)
    kinds = {"letter": r"\p{L}", "number": r"\p{N}", "space": r"\s", "other": r"[^\s\p{L}\p{N}]"}
    found = {kind: set(regex.findall(pattern, text)) for kind, pattern in kinds.items()}
    wrong = [c for c in known if c not in found[kind_of(c)]]
    assert not wrong, wrong[:20]


@pytest.mark.parametrize("seed", range(4))
def test_texts_are_cut_into_words_as_gpt2s_published_pattern_cuts_them(seed):
    rng = random.Random(seed)
    pieces = ["'s", "'re", "'", "'T", "s", "LL", " ", "  ", "\n", "\t", "\x1f", "\xa0", "7", "½"]
    pieces += ["é", "e\u0301", "漢", "!", "_", "\u200d", "👍"]
    texts = nasty_texts(400, seed) + [
        "".join(rng.choices(pieces, k=rng.randint(0, 9))) for _ in range(3000)
    ]
    for text in texts:
        words = split_words(text)
        assert words == regex.findall(GPT2_WORDS, text), repr(text)
        assert "".join(words) == text


# Ids.


def library_of(tokens, merges, specials=()):
    """The `tokenizers` library with the same tokens and merges, spelled."""
    library = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    library.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    return library


def random_merges(rng, num):
    """Merges in no order that training could give."""
    tokens = [chr(c).encode() for c in b"abc "]
    merges = []
    while len(merges) < num:
        left, right = rng.choice(tokens), rng.choice(tokens)
        if left + right not in tokens and b" " not in right:
            merges.append((left, right))
            tokens.append(left + right)
    rng.shuffle(merges)
    return merges


@pytest.mark.parametrize("seed", range(20))
def test_any_merges_in_any_order_give_the_ids_that_the_library_gives(seed):
    rng = random.Random(seed)
    merges = random_merges(rng, rng.randint(1, 25))
    tokens = [bytes([b]) for b in range(256)] + [left + right for left, right in merges]
    ours = BPETokenizer({token: i for i, token in enumerate(tokens)}, merges)
    library = library_of(
        map(spell, tokens), [(spell(left), spell(right)) for left, right in merges]
    )
    for _ in range(200):
        text = "".join(rng.choices("aabbc ", k=rng.randint(0, 25)))
        assert ours.encode(text) == library.encode(text).ids, text


def test_nasty_texts_give_the_ids_of_the_library_and_of_the_definition(trained):
    tokens = sorted(trained.ids, key=trained.ids.get)
    spelled = [*map(spell, tokens), *trained.added]
    merges = [(spell(left), spell(right)) for left, right in trained.merges]
    library = library_of(spelled[: len(tokens)], merges, trained.added)
    for text in TEXTS:
        ids = trained.encode(text)
        assert ids == library.encode(text).ids, repr(text)
        assert ids == plain_byte_level(
            text, lambda part: regex.findall(GPT2_WORDS, part), spelled, merges, specials=SPECIALS
        )
        assert trained.decode(ids, skip_special_tokens=False) == text


def test_a_byte_that_the_vocabulary_lacks_is_dropped_before_merging():
    tokens = ["a", "b", "ab"]
    ours = BPETokenizer({t.encode(): i for i, t in enumerate(tokens)}, [(b"a", b"b")])
    library = library_of(tokens, [("a", "b")])
    for text in ("ab", "a\x00b", "a\xe9b", "xaxbx"):
        assert ours.encode(text) == library.encode(text).ids


def test_the_leftmost_of_equal_pairs_is_merged_first():
    assert merge([b"a"] * 5, {(b"a", b"a"): 0}) == [b"aa", b"aa", b"a"]
    ranks = {(b"ab", b"a"): 0, (b"a", b"b"): 1}
    assert merge([b"a", b"b", b"a", b"b"], ranks) == [b"aba", b"b"]


def test_added_tokens_are_cut_out_leftmost_and_longest_first():
    assert list(cut_at("xabcab", ["ab", "abc"])) == ["x", "abc", "ab"]
    assert list(cut_at("a.c", ["a.c"])) == list(cut_at("a.c", [])) == ["a.c"]
    assert list(cut_at("", ["a"])) == list(cut_at("", [])) == []


def test_special_tokens_are_skipped_in_text_only_when_asked(trained):
    ids = trained.encode("Hi<|im_end|>the")
    assert trained.added["<|im_end|>"] in ids
    assert trained.decode(ids) == "Hithe"
    assert trained.decode(ids, skip_special_tokens=False) == "Hi<|im_end|>the"
    assert trained.token_bytes(-1) == trained.token_bytes(trained.vocab_size) == b""


def test_a_lone_surrogate_is_refused(trained):
    with pytest.raises(ValueError, match=r"lone surrogate.*character 2"):
        trained.encode("ab\ud800")


# Training.


def slow_merges(words, num_merges):
    """By the definition: after each merge all pairs are counted anew."""
    split = {word: tuple(word) for word in words}
    merges = []
    for new_id in range(256, 256 + num_merges):
        counts = Counter()
        for word, weight in words.items():
            for pair in pairwise(split[word]):
                counts[pair] += weight
        if not counts:
            break
        pair = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(pair)
        for word, ids in split.items():
            joined = []
            for token_id in ids:
                joined.append(token_id)
                if tuple(joined[-2:]) == pair:
                    joined[-2:] = [-1]  # a mark, so that what was just made joins nothing
            split[word] = tuple(new_id if i == -1 else i for i in joined)
    return merges


@pytest.mark.parametrize("seed", range(12))
def test_merges_are_those_of_counting_all_pairs_each_time(seed):
    rng = random.Random(seed)
    letters = rng.choice(["ab", "aab", "abcdefgh", "aé漢"])
    words = Counter(
        "".join(rng.choices(letters, k=rng.randint(1, 12))).encode()
        for _ in range(rng.randint(1, 60))
    )
    assert learn_merges(words, 40) == slow_merges(words, 40)
    assert learn_merges(count_words(CORPUS[:3000]), 60) == slow_merges(
        count_words(CORPUS[:3000]), 60
    )


def test_counts_stay_true_through_all_merges():
    index = PairIndex(count_words("banana bandana aaaa aaaaa " * 3 + "".join(TEXTS[:30])))
    new_id = 256
    while index.counts:
        index.merge(index.most_frequent(), new_id)
        index.check()
        new_id += 1
    assert all(len(word) == 1 for word in index.words) and not index.places


def test_of_equally_frequent_pairs_the_lowest_ids_are_merged():
    words = {b"zy": 3, b"ab": 3, b"ac": 3, b"q": 9}
    assert learn_merges(words, 2) == [(97, 98), (97, 99)]


def test_a_run_is_joined_from_the_left():
    assert join([5] * 5, (5, 5), 9) == [9, 9, 5]
    assert join([1, 5, 5, 1], (5, 5), 9) == [1, 9, 1]


@pytest.mark.parametrize("seed", range(3))
def test_the_librarys_trainer_learns_the_same_merges(seed):
    """On characters whose letters stand in the order of their bytes, where its rule for equals
    (lowest ids) is ours."""
    rng = random.Random(seed)
    syllables = ["ba", "na", "Ko", "ri", "12", "7", "!", "-", "'s", "str", "o"]
    text = "".join(rng.choices(syllables, k=4000))
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    letters = sorted(byte_alphabet().values())
    library.train_from_iterator(
        [text],
        trainers.BpeTrainer(vocab_size=256 + 90, initial_alphabet=letters, show_progress=False),
    )
    merges = json.loads(library.to_str())["model"]["merges"]
    ours = train(text, 256 + 90)
    assert [(spell(left), spell(right)) for left, right in ours.merges] == [*map(tuple, merges)]


def test_only_words_with_the_pair_are_looked_at(monkeypatch):
    """Counting all again would look at every word for every merge."""
    words = count_words(CORPUS)
    looks = []
    monkeypatch.setattr(bpe_training, "join", lambda *args: looks.append(1) or join(*args))
    learn_merges(words, 200)
    assert len(looks) < 0.05 * 200 * len(words)


def test_a_trained_tokenizer_has_the_size_that_was_asked_for(trained):
    assert trained.vocab_size == 700 == len(trained.ids) + len(trained.added)
    assert [trained.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert [*trained.added.values()] == [696, 697, 698, 699]
    assert trained.bos_token_id == 696 and trained.eos_token_ids == (698,)
    assert count_words("a<|im_end|> b<|im_end|>a", SPECIALS) == {b"a": 2, b" b": 1}


def test_sizes_that_cannot_be_are_refused_with_those_that_can():
    with pytest.raises(ValueError, match=r"at least 257, .* got 256"):
        train("banana", 256, ["<s>"])
    assert train("aba aba", 259).merges == [(b"a", b"b"), (b"ab", b"a"), (b" ", b"aba")]
    with pytest.raises(ValueError, match=r"at most 260, got 1000"):
        train("aba aba", 1000, ["<s>"])
    with pytest.raises(ValueError, match="not one of the special tokens"):
        train("banana", 257, ["<s>"], eos_token="</s>")


def test_training_gives_the_same_file_in_every_process():
    code = (
        "import json, sys\n"
        "from minivllm.tokenizer.bpe_file import tokenizer_json\n"
        "from minivllm.tokenizer.bpe_training import train\n"
        "print(json.dumps(tokenizer_json(train(sys.stdin.read(), 500, ['<s>']))))\n"
    )
    files = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=CORPUS[:20_000].encode(),
            capture_output=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONUTF8": "1"},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(files) == 1


# Files.


@pytest.mark.parametrize("add_bos_token", [False, True])
def test_the_library_reads_the_saved_file_and_gives_the_same_ids(tmp_path, trained, add_bos_token):
    ours = BPETokenizer(
        trained.ids, trained.merges, {**trained.added, "été": 700},
        special_token_ids=trained.added.values(), bos_token_id=696, eos_token_ids=[698],
        add_bos_token=add_bos_token, chat_template="{{ messages }}",
    )  # fmt: skip
    save_bpe(ours, tmp_path)
    library, again = load_tokenizer(str(tmp_path)), load_bpe(tmp_path)
    for text in [*TEXTS, "l'été<|im_end|>été"]:
        ids = library.encode(text)
        assert ours.encode(text) == again.encode(text) == ids, repr(text)
        assert again.decode(ids) == library.decode(ids)
        plain = library.encode(text, add_special_tokens=False)
        assert again.encode(text, add_special_tokens=False) == plain
    for name in ("vocab_size", "bos_token_id", "eos_token_ids", "add_bos_token", "chat_template"):
        assert getattr(again, name) == getattr(library, name) == getattr(ours, name), name
    for token_id in range(-1, ours.vocab_size + 1):
        assert again.token_bytes(token_id) == library.token_bytes(token_id)
        assert again.is_special(token_id) == library.is_special(token_id)
    assert tokenizer_json(again) == tokenizer_json(ours)


def test_transformers_reads_the_saved_folder(tmp_path, trained):
    from transformers import AutoTokenizer

    save_bpe(trained, tmp_path)
    judge = AutoTokenizer.from_pretrained(tmp_path)
    assert judge(TEXTS[:200])["input_ids"] == [trained.encode(text) for text in TEXTS[:200]]
    assert judge.eos_token == "<|im_end|>" and judge.bos_token_id == trained.bos_token_id


def test_merges_of_older_files_are_read_too(tmp_path, trained):
    save_bpe(trained, tmp_path)
    file = tmp_path / "tokenizer.json"
    spec = json.loads(file.read_text(encoding="utf-8"))
    spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]
    file.write_text(json.dumps(spec), encoding="utf-8")
    assert load_bpe(tmp_path).merges == trained.merges


def test_it_is_read_and_used_where_there_is_no_library(tmp_path, trained):
    save_bpe(trained, tmp_path)
    code = (
        "import sys\n"
        "for name in ('tokenizers', 'regex', 'numpy', 'torch'): sys.modules[name] = None\n"
        "from minivllm.tokenizer.bpe_file import load_bpe\n"
        f"tokenizer = load_bpe({str(tmp_path)!r})\n"
        "print(tokenizer.encode('The cat'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == f"{trained.encode('The cat')}\n", done.stderr


DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}]}
CHANGES = {
    "model.type": (("model", "type"), "WordPiece"),
    "model.byte_fallback": (("model", "byte_fallback"), True),
    "model.ignore_merges": (("model", "ignore_merges"), True),
    "model.unk_token": (("model", "unk_token"), "<unk>"),
    "normalizer": (("normalizer",), {"type": "NFC"}),
    "pre_tokenizer": (("pre_tokenizer",), DIGITS),
    "pre_tokenizer, a space before": (("pre_tokenizer", "add_prefix_space"), True),
    "decoder.type": (("decoder",), {"type": "Metaspace"}),
    "lstrip": (("added_tokens", 0, "lstrip"), True),
    "post_processor": (("post_processor",), {"type": "BertProcessing"}),
    "no token over bytes": (("model", "vocab", "▁x"), 9999),
    "has no token": (("model", "merges", 0), ["z", "q"]),
    "is no tokenizer": (("model", "vocab"), None),
    "added token is empty": (("added_tokens", 1, "content"), ""),
}


@pytest.mark.parametrize("complaint", CHANGES)
def test_what_a_file_asks_for_beyond_this_is_refused_by_name(tmp_path, trained, complaint):
    save_bpe(trained, tmp_path)
    file = tmp_path / "tokenizer.json"
    spec = json.loads(file.read_text(encoding="utf-8"))
    (*path, last), value = CHANGES[complaint]
    place = spec
    for key in path:
        place = place[key]
    place[last] = value
    file.write_text(json.dumps(spec), encoding="utf-8")
    with pytest.raises(ValueError, match=complaint.partition(",")[0]) as caught:
        load_bpe(tmp_path)
    assert "tokenizer.json" in str(caught.value)


def test_a_folder_without_the_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        load_bpe(tmp_path)


def test_bytes_and_their_letters_are_one_to_one():
    everything = bytes(range(256))
    assert unspell(spell(everything)) == everything
    assert spell(everything) == "".join(byte_alphabet()[b] for b in range(256))
