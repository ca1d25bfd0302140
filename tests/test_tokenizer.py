"""Ids and text against transformers, and against tokenizing by the definition."""

from __future__ import annotations

import json
import os
import random

import pytest
import regex
from vocabularies import (
    SPLITS,
    byte_alphabet,
    nasty_texts,
    plain_byte_level,
    plain_sentencepiece,
    train_byte_level,
    train_sentencepiece,
    write_gguf,
)

from minivllm.sampling_params import SamplingParams
from minivllm.tokenizer.detokenizer import Detokenizer
from minivllm.tokenizer.gguf_vocab import GGUFVocab
from minivllm.tokenizer.tokenizer import IdTokenizer, load_tokenizer

TEXTS = nasty_texts(1000, seed=0)


def random_ids(vocab_size, count, seed=0):
    rng = random.Random(seed)
    return [rng.choices(range(vocab_size), k=rng.randint(0, 30)) for _ in range(count)]


# The real model.


@pytest.fixture(scope="module")
def real(smollm2):
    return load_tokenizer(smollm2)


@pytest.fixture(scope="module")
def judge(smollm2_hf):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_hf)


@pytest.fixture(scope="module")
def second_judge(smollm2):
    """transformers' own reading of the GGUF file."""
    from transformers import AutoTokenizer

    folder, name = os.path.split(smollm2)
    return AutoTokenizer.from_pretrained(folder, gguf_file=name)


@pytest.mark.slow
def test_nasty_texts_get_the_ids_that_transformers_gives(real, judge, second_judge):
    expected = judge(TEXTS)["input_ids"]
    for text, token_ids in zip(TEXTS, expected, strict=True):
        assert real.encode(text) == token_ids, repr(text)
    # transformers' reading of the file does not know that this family sets digits apart.
    same = [text for text in TEXTS if not regex.search(r"\p{N}", text)]
    assert len(same) > 300
    assert second_judge(same)["input_ids"] == [real.encode(text) for text in same]


def test_nasty_texts_come_back_but_for_bytes_that_the_vocabulary_lacks(real):
    missing = {b for b in range(256) if bytes([b]) not in map(real.token_bytes, range(49152))}
    whole = [text for text in TEXTS if not missing & set(text.encode())]
    assert len(whole) > 950
    for text in whole:
        assert real.decode(real.encode(text), skip_special_tokens=False) == text


def test_any_ids_get_the_text_that_transformers_gives(real, judge):
    for token_ids in random_ids(real.vocab_size, 300) + random_ids(40, 100):
        for skip in (True, False):
            expected = judge.decode(token_ids, skip_special_tokens=skip)
            assert real.decode(token_ids, skip_special_tokens=skip) == expected


def test_an_answer_streams_as_the_text_that_transformers_adds_to_the_prompt(real, judge):
    for text in TEXTS[:300]:
        token_ids = real.encode(text)
        detokenizer = Detokenizer(real, SamplingParams(), token_ids[:1])
        shown = "".join(detokenizer.push([i]) for i in token_ids[1:]) + detokenizer.finish()
        prompt = judge.decode(token_ids[:1], skip_special_tokens=True)
        if "\ufffd" not in prompt:
            assert prompt + shown == judge.decode(token_ids, skip_special_tokens=True)


def test_the_folder_and_the_gguf_file_of_a_model_hold_the_same_tokenizer(real, smollm2_hf):
    folder = load_tokenizer(smollm2_hf)
    assert [folder.encode(text) for text in TEXTS] == [real.encode(text) for text in TEXTS]
    for name in ("vocab_size", "bos_token_id", "eos_token_ids", "add_bos_token", "chat_template"):
        assert getattr(folder, name) == getattr(real, name), name
    for token_id in range(-1, real.vocab_size + 1):
        assert folder.token_bytes(token_id) == real.token_bytes(token_id)
        assert folder.is_special(token_id) == real.is_special(token_id)


# Families of GGUF files, in small.

SPECIALS = ("<|im_start|>", "<|im_end|>", "<s>", "<\u2581x>")
ADDED = ("<think>", "é#")


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    """Per family: a tokenizer from a GGUF file, its tokens and merges, the file's path."""
    folder = tmp_path_factory.mktemp("byte_level")
    tokens, merges = train_byte_level(nasty_texts(1000, seed=1), 1500)
    types = [1] * len(tokens) + [3] * len(SPECIALS) + [4] * len(ADDED)
    tokens = [*tokens, *SPECIALS, *ADDED]
    spelled = [" ".join(merge) for merge in merges]

    def load(pre, **facts):
        name = folder / f"{pre}-{len(os.listdir(folder))}.gguf"
        facts = {"tokens": tokens, "token_type": types, "merges": spelled} | facts
        path = write_gguf(name, "gpt2", pre=pre, **facts)
        return load_tokenizer(path), tokens, merges, path

    return load


@pytest.mark.parametrize("pre", SPLITS)
def test_a_byte_level_file_is_tokenized_by_the_published_rules(byte_level, pre):
    ours, tokens, merges, _ = byte_level(pre)
    for text in TEXTS:
        expected = plain_byte_level(
            text,
            SPLITS[pre],
            tokens,
            merges,
            specials=SPECIALS + ADDED,
            whole_words=pre == "llama-bpe",
        )
        assert ours.encode(text, add_special_tokens=False) == expected, repr(text)


@pytest.mark.parametrize("pre", SPLITS)
def test_a_byte_level_file_cuts_words_by_the_published_rules(pre):
    """Seen before merging, which can hide a wrong cut."""
    letters = byte_alphabet()
    metadata = {"model": "gpt2", "pre": pre, "tokens": ["a", "b", "ab"], "merges": ["a b"]}
    vocab = GGUFVocab({f"tokenizer.ggml.{name}": value for name, value in metadata.items()})
    library = vocab.library()
    for text in [*TEXTS, "we'LLsee it'Sso 'ſx don'tknow", "\u0085a\u00a0b\u2003c \r\n\r\nd"]:
        normal = library.normalizer.normalize_str(text) if library.normalizer else text
        words = [word for word, _ in library.pre_tokenizer.pre_tokenize_str(normal)]
        expected = SPLITS[pre](text)
        assert words == ["".join(letters[b] for b in word.encode()) for word in expected]


def test_the_families_differ_on_the_nasty_texts(byte_level):
    families = [byte_level(pre)[0] for pre in SPLITS]
    ids = [[family.encode(text) for text in TEXTS] for family in families]
    for index, one in enumerate(ids):
        for other in ids[:index]:
            assert sum(a != b for a, b in zip(one, other, strict=True)) > 100


def test_a_llama_3_word_that_is_a_token_is_one_even_if_no_merges_lead_there(byte_level):
    _, tokens, merges, _ = byte_level("llama-bpe")
    first, tokens = " ".join(merges[0]), [*tokens, "zqzqzq"]
    types = [1] * len(tokens)
    for pre, expected in (("llama-bpe", 1), ("qwen2", 6)):
        ours, *_ = byte_level(pre, tokens=tokens, token_type=types, merges=[first])
        assert len(ours.encode("zqzqzq")) == expected


@pytest.mark.parametrize(("pre", "name"), [("qwen2", "Qwen2Tokenizer"), ("gpt-2", "GPT2Tokenizer")])
def test_byte_level_ids_are_those_of_transformers_class_for_the_family(byte_level, pre, name):
    import transformers

    ours, tokens, merges, _ = byte_level(pre)
    names = dict.fromkeys(("unk_token", "bos_token", "eos_token", "pad_token"), SPECIALS[0])
    judge = getattr(transformers, name)({t: i for i, t in enumerate(tokens)}, merges, **names)
    judge.add_special_tokens({"additional_special_tokens": list(SPECIALS)})
    for text in TEXTS:
        assert ours.encode(text) == judge(text)["input_ids"], repr(text)


def test_llama_3_ids_are_those_of_transformers_reading_of_the_file(byte_level):
    """Every token here is one that merges lead to, and no text holds transformers' own <unk>."""
    from transformers import AutoTokenizer

    ours, *_, path = byte_level("llama-bpe")
    judge = AutoTokenizer.from_pretrained(os.path.dirname(path), gguf_file=os.path.basename(path))
    for text in TEXTS:
        if "<|endoftext|>" not in text:
            assert ours.encode(text) == judge(text)["input_ids"], repr(text)


def test_special_tokens_are_skipped_and_added_ones_are_text(byte_level):
    ours, tokens, *_ = byte_level("gpt-2")
    token_ids = ours.encode("a<|im_start|>é#<think><\u2581x>")
    assert [tokens[i] for i in token_ids] == ["a", "<|im_start|>", "é#", "<think>", "<\u2581x>"]
    assert ours.decode(token_ids) == "aé#<think>"
    assert ours.decode(token_ids, skip_special_tokens=False) == "a<|im_start|>é#<think><\u2581x>"
    assert [ours.is_special(i) for i in token_ids] == [False, True, False, False, True]
    assert b"".join(map(ours.token_bytes, token_ids)).decode() == "a<|im_start|>é#<think><\u2581x>"


@pytest.mark.parametrize(
    ("pre", "facts", "expected"),
    [
        ("smollm", {}, False),
        ("qwen2", {}, False),
        ("llama-bpe", {}, True),
        ("llama-bpe", {"add_bos_token": False}, False),
        ("gpt-2", {"add_bos_token": True}, True),
    ],
)
def test_bos_is_added_where_the_file_or_the_family_says_so(byte_level, pre, facts, expected):
    ours, tokens, *_ = byte_level(pre, bos_token_id=1, **facts)
    assert ours.encode("a") == [1] * expected + [tokens.index("a")]
    assert ours.encode("") == [1] * expected
    assert ours.encode("a", add_special_tokens=False) == [tokens.index("a")]


def test_every_end_that_a_file_names_ends_a_text_its_eos_first(byte_level):
    ours, *_ = byte_level("gpt-2", eos_token_id=9, eot_token_id=7, eom_token_id=9)
    assert ours.eos_token_ids == (9, 7)
    assert ours.is_special(7)
    assert ours.bos_token_id is None


# Sentencepiece.

SPM_SPECIALS = ("<unk>", "<s>", "</s>")


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sentencepiece")
    texts = [t for t in nasty_texts(1000, seed=2) if not any(s in t for s in SPM_SPECIALS)]
    pieces, scores = train_sentencepiece(texts, 2500)
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*SPM_SPECIALS, *raw, "<think>", *pieces]
    scores = [0.0] * (len(tokens) - len(pieces)) + scores
    types = [2, 3, 3] + [6] * 256 + [4] + [1] * len(pieces)

    def load(**facts):
        name = folder / f"{len(os.listdir(folder))}.gguf"
        facts = {"tokens": tokens, "scores": scores, "token_type": types} | facts
        path = write_gguf(name, "llama", bos_token_id=1, eos_token_id=2, **facts)
        return load_tokenizer(path), tokens, scores, path

    return load


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_joins_the_best_scored_neighbours(sentencepiece, prefix):
    ours, tokens, scores, _ = sentencepiece(**({} if prefix else {"add_space_prefix": False}))
    specials = (*SPM_SPECIALS, "<think>")
    for text in TEXTS:
        expected = plain_sentencepiece(text, tokens, scores, specials=specials, prefix=prefix)
        assert ours.encode(text) == [1, *expected], repr(text)
        whole = ours.decode(ours.encode(text), skip_special_tokens=False)
        if not any(s in text for s in (*specials, "▁", "<0x")):
            assert whole == ("<s> " if prefix else "<s>") * bool(text) + text or not text


def test_any_scores_rank_the_merges_as_sentencepiece_joins(tmp_path):
    rng = random.Random(0)
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    for trial in range(100):
        made = {"".join(rng.choices("ab", k=rng.randint(2, 5))) for _ in range(10)}
        tokens = ["<unk>", *raw, "a", "b", *sorted(made)]
        scores = [0.0] * 259 + [float(s) for s in rng.sample(range(-99, 0), len(made))]
        path = write_gguf(
            tmp_path / f"{trial}.gguf",
            "llama",
            tokens=tokens,
            scores=scores,
            token_type=[2] + [6] * 256 + [1] * (len(tokens) - 257),
            add_space_prefix=False,
        )
        ours = load_tokenizer(path)
        for _ in range(20):
            text = "".join(rng.choices("ab", k=rng.randint(1, 14)))
            expected = plain_sentencepiece(text, tokens, scores, prefix=False)
            assert ours.encode(text) == expected, (text, tokens, scores)


@pytest.fixture(scope="module")
def spm_judge(sentencepiece):
    from transformers import AutoTokenizer

    folder, name = os.path.split(sentencepiece()[3])
    return AutoTokenizer.from_pretrained(folder, gguf_file=name)


def test_sentencepiece_agrees_with_transformers(sentencepiece, spm_judge):
    """But after special tokens, where transformers' class puts no space and sentencepiece does,
    and on texts that begin with a space, where it puts none either."""
    ours, *_ = sentencepiece()
    num_texts = 0
    for text in TEXTS:
        if text[:1] in " ▁" or any(s in text for s in (*SPM_SPECIALS, "<think>")):
            continue
        num_texts += 1
        token_ids = ours.encode(text)
        assert token_ids == spm_judge(text)["input_ids"], repr(text)
        expected = spm_judge.decode(token_ids, skip_special_tokens=True)
        assert ours.decode(token_ids) == expected
    assert num_texts > 500


def test_an_answer_keeps_the_space_that_its_first_piece_begins_with(sentencepiece, spm_judge):
    ours, tokens, *_ = sentencepiece()
    rng = random.Random(0)
    words = [i for i, token in enumerate(tokens) if i > 259 and token.isascii()]
    for _ in range(200):
        token_ids = [1, *rng.choices(words, k=rng.randint(2, 12))]
        num_prompt = rng.randint(2, len(token_ids))
        detokenizer = Detokenizer(ours, SamplingParams(), token_ids[:num_prompt])
        shown = "".join(detokenizer.push([i]) for i in token_ids[num_prompt:])
        prompt = spm_judge.decode(token_ids[:num_prompt], skip_special_tokens=True)
        whole = spm_judge.decode(token_ids, skip_special_tokens=True)
        assert shown + detokenizer.finish() == whole[len(prompt) :]


def test_a1_bytes_that_no_piece_covers_come_together_to_characters(sentencepiece):
    ours, tokens, *_ = sentencepiece()
    text = "\N{OCTOPUS}!"
    token_ids = [tokens.index(f"<0x{byte:02X}>") for byte in text.encode()]
    detokenizer = Detokenizer(ours, SamplingParams(), [1])
    deltas = [detokenizer.push([i]) for i in token_ids]
    assert deltas == ["", "", "", "\N{OCTOPUS}", "!"]
    assert ours.decode(token_ids) == text


# What is refused.


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"pre": "deepseek-llm"}, "pre is 'deepseek-llm'; supported: 'gpt-2', 'smollm'"),
        ({"pre": ""}, "pre is ''"),
        ({"token_type": [1, 1]}, "token_type has 2 entries for 3 tokens"),
        ({"bos_token_id": 3}, "bos_token_id is 3, outside the 3 tokens"),
        ({"eot_token_id": 99}, "eot_token_id is 99"),
        ({"add_eos_token": True}, "add_eos_token"),
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"merges": ["a c"]}, "merges do not fit the tokens: .*`c`"),
        ({"merges": ["ab"]}, "merges do not fit the tokens"),
    ],
)
def test_a_gguf_file_whose_tokenizer_is_not_supported_is_refused_by_name(tmp_path, facts, message):
    facts = {"pre": "gpt-2", "tokens": ["a", "b", "ab"], "merges": ["a b"]} | facts
    given = {name: value for name, value in facts.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        load_tokenizer(write_gguf(tmp_path / "x.gguf", "gpt2", **given))


def test_a_gguf_file_of_another_family_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="model is 'bert'"):
        load_tokenizer(write_gguf(tmp_path / "x.gguf", "bert", tokens=["a"]))
    with pytest.raises(ValueError, match=r"no tokenizer\.ggml\.scores"):
        load_tokenizer(write_gguf(tmp_path / "y.gguf", "llama", tokens=["a"]))


def test_what_is_no_text_is_refused_and_control_characters_are_not(real):
    with pytest.raises(ValueError, match=r"lone surrogate, '\\ud83d', at character 2"):
        real.encode("ab\ud83d")
    assert real.decode(real.encode("a\0b\x7f")) == "a\0b\x7f"


def test_an_id_beyond_the_vocabulary_adds_nothing(real):
    assert real.token_bytes(real.vocab_size) == real.token_bytes(-1) == b""
    assert real.decode([real.vocab_size + 7]) == ""


# Folders.


@pytest.fixture
def folder(tmp_path):
    """Write a folder with a byte-level tokenizer.json, changed and accompanied as told."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    def write(*, framed=None, decoder=None, normalizer=None, **files):
        tokens, merges = train_byte_level(nasty_texts(50, seed=3), 300)
        library = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoder or decoders.ByteLevel()
        library.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
        if framed:
            special = [(s, library.token_to_id(s)) for s in ("<s>", "</s>")]
            library.post_processor = processors.TemplateProcessing(
                single=framed, special_tokens=special
            )
        library.save(str(tmp_path / "tokenizer.json"))
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return tmp_path

    return write


BOS_EOS = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}}


@pytest.mark.parametrize("framed", [None, "<s> $A"])
@pytest.mark.parametrize("asked", [None, True, False])
def test_a_folder_adds_bos_where_transformers_does(folder, framed, asked):
    from transformers import AutoTokenizer

    config = BOS_EOS | ({} if asked is None else {"add_bos_token": asked})
    config |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    path = folder(framed=framed, tokenizer_config=config)
    judge = AutoTokenizer.from_pretrained(path)
    ours = load_tokenizer(path)
    for text in ("", "hello world", "<s>x</s>"):
        assert ours.encode(text) == judge(text)["input_ids"]
        plain = judge(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == plain


def test_a_folder_may_leave_out_all_but_its_tokenizer(folder):
    ours = load_tokenizer(folder())
    assert (ours.bos_token_id, ours.eos_token_ids, ours.chat_template) == (None, (), None)
    assert ours.decode(ours.encode("as it is: é</s>")) == "as it is: é"


def test_a_folder_ends_a_text_where_its_tokenizer_and_its_model_do(folder):
    config = {"eos_token_id": 4}
    ours = load_tokenizer(folder(tokenizer_config=BOS_EOS, config=config))
    eos = ours.encode("</s>")[0]
    assert ours.eos_token_ids == (eos, 4)
    generation = {"eos_token_id": [5, eos]}
    ours = load_tokenizer(folder(generation_config=generation))
    assert ours.eos_token_ids == (eos, 5)


def test_a_token_that_a_folder_names_as_its_end_is_special(folder):
    from transformers import AutoTokenizer

    config = {"eos_token": "z", "tokenizer_class": "PreTrainedTokenizerFast"}
    path = folder(tokenizer_config=config)
    ours, judge = load_tokenizer(path), AutoTokenizer.from_pretrained(path)
    token_ids = ours.encode("xyz")
    assert ours.eos_token_ids == (token_ids[-1],)
    assert ours.decode(token_ids) == judge.decode(token_ids, skip_special_tokens=True) == "xy"


def test_a_folder_names_its_chat_template_in_one_of_three_ways(folder):
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    for template, expected in (("T", "T"), (named, "D"), (None, None), (named[:1], None)):
        path = folder(tokenizer_config=BOS_EOS | {"chat_template": template})
        assert load_tokenizer(path).chat_template == expected
    (path / "chat_template.jinja").write_text("J\n")
    assert load_tokenizer(path).chat_template == "J\n"


def test_a_sentencepiece_folder_decodes_as_transformers_does(folder):
    from tokenizers import decoders
    from transformers import PreTrainedTokenizerFast

    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    for strip in (True, False):
        more = [decoders.Strip(" ", 1, 0)] if strip else []
        path = folder(decoder=decoders.Sequence(parts + more), tokenizer_config=BOS_EOS)
        spec = json.loads((path / "tokenizer.json").read_text())
        spec["model"]["vocab"] |= {"▁a": 1000, "▁▁": 1001, "<0xC3>": 1002, "<0xA9>": 1003}
        (path / "tokenizer.json").write_text(json.dumps(spec))
        ours = load_tokenizer(path)
        judge = PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
        assert ours.vocab_size == 1004
        for token_ids in ([1000, 1000], [1001, 1000], [1000, 1002, 1003], [1002, 1003, 1001]):
            assert ours.decode(token_ids) == judge.decode(token_ids)


def test_a_folder_that_lacks_or_spoils_its_tokenizer_is_refused(folder, tmp_path):
    from tokenizers import decoders

    with pytest.raises(ValueError, match=r"no tokenizer\.json: give prompts as token ids"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="decoder WordPiece, which is not supported"):
        load_tokenizer(folder(decoder=decoders.WordPiece()))
    with pytest.raises(ValueError, match="eos_token '<end>' is not in the vocabulary"):
        load_tokenizer(folder(tokenizer_config={"eos_token": "<end>"}))
    for framed in ("<s> $A </s>", "$A </s>", "<s> <s> $A"):
        with pytest.raises(ValueError, match=r"post_processor of tokenizer\.json"):
            load_tokenizer(folder(framed=framed, tokenizer_config={}))
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(ValueError, match=r"tokenizer\.json is not JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(tmp_path)


def test_a_model_without_a_tokenizer_has_its_ids_as_text():
    ours = IdTokenizer(331, bos_token_id=1, eos_token_ids=(2,))
    assert ours.encode("17 4\n330") == [17, 4, 330]
    assert ours.decode([17, 4]) == "17 4 "
    assert b"".join(map(ours.token_bytes, [17, 4])) == b"17 4 "
    detokenizer = Detokenizer(ours, SamplingParams(stop="4 "))
    assert detokenizer.push([17]) + detokenizer.push([4]) == "17 "
    with pytest.raises(ValueError, match="no tokenizer: give the prompt as token ids"):
        ours.encode("once upon")
