"""Text as it grows is the text as a whole: judged by decoding everything at once and cutting it
one character after the other."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.sampling_params import SamplingParams
from minivllm.tokenizer.detokenizer import Detokenizer, stop_at

EMOJI = "\N{OCTOPUS}".encode()  # 4 bytes


class Vocabulary:
    """Ids are places in a list of bytes; some are special. Counts how often it is asked."""

    def __init__(self, pieces, special=()):
        self.pieces = [p.encode() if isinstance(p, str) else p for p in pieces]
        self.special = set(special)
        self.num_asked = 0

    def token_bytes(self, token_id):
        self.num_asked += 1
        return self.pieces[token_id]

    def is_special(self, token_id):
        return token_id in self.special


def is_beginning_of_a_character(tail: bytes) -> bool:
    """By trial: some continuation makes it one character."""
    edges = (0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF)
    for length in (1, 2, 3):
        for more in product(edges, repeat=length):
            try:
                if len((tail + bytes(more)).decode()) == 1:
                    return True
            except UnicodeDecodeError:
                pass
    return False


def half_character(data: bytes) -> bytes:
    return next((data[-n:] for n in (3, 2, 1) if is_beginning_of_a_character(data[-n:])), b"")


def settled(data: bytes) -> str:
    """The characters that no further byte can change."""
    return data[: len(data) - len(half_character(data))].decode(errors="replace")


def plain(vocabulary, ids, params, prompt=()):
    """(text, stop reason) of an answer decoded at once."""

    def visible(token_ids):
        hidden = vocabulary.special if params.skip_special_tokens else ()
        return b"".join(vocabulary.pieces[i] for i in token_ids if i not in hidden)

    half, new = half_character(visible(prompt)), visible(ids)
    if not (new and half and len(half + new[:1]) <= 4 and goes_on(half, new[:1])):
        half = b""
    text = (half + new).decode(errors="replace")
    exempt = len(settled(half + visible(ids[: params.min_tokens]))) if params.min_tokens else 0
    exempt = exempt if len(ids) > params.min_tokens else len(text)
    for end in range(exempt + 1, len(text) + 1):
        for stop in params.stop:
            if text[:end].endswith(stop):
                kept = end if params.include_stop_str_in_output else end - len(stop)
                return text[:kept], stop
    return text, None


def goes_on(half: bytes, byte: bytes) -> bool:
    try:
        return len((half + byte).decode()) == 1
    except UnicodeDecodeError:
        return is_beginning_of_a_character(half + byte)


def run(vocabulary, chunks, params, prompt=()):
    """(deltas, the last of them from finish; the detokenizer)"""
    detokenizer = Detokenizer(vocabulary, params, prompt)
    deltas = []
    for chunk in chunks:
        deltas.append(detokenizer.push(chunk))
        detokenizer.check()
    deltas.append(detokenizer.finish())
    detokenizer.check()
    assert detokenizer.text == "".join(deltas)
    return deltas, detokenizer


RAW = st.one_of(
    st.sampled_from([b"a", b"b", b"ab", b"ba", b" a", b"\n", b"aab", b"", b"\xff", b"\x80"]),
    st.sampled_from(["é", "€", "\N{OCTOPUS}", "\ufffd", "\u200d"]).map(str.encode),
    st.sampled_from([EMOJI[:1], EMOJI[1:2], EMOJI[:2], EMOJI[2:], EMOJI[3:], EMOJI[1:3]]),
    st.binary(min_size=1, max_size=3),
)
STOP = st.one_of(
    st.text("ab", min_size=1, max_size=4),
    st.text("ab\né\ufffd\N{OCTOPUS}", min_size=1, max_size=3),
)


@st.composite
def answers(draw):
    pieces = draw(st.lists(RAW, min_size=1, max_size=8))
    any_ids = st.lists(st.integers(0, len(pieces) - 1), max_size=16)
    ids = draw(any_ids)
    text = b"".join(pieces[i] for i in ids).decode(errors="replace")
    places = st.tuples(st.integers(0, len(text)), st.integers(1, 4))
    parts = places.map(lambda place: text[place[0] : sum(place)] or "a")
    vocabulary = Vocabulary(pieces, draw(st.sets(st.integers(0, len(pieces) - 1), max_size=2)))
    params = SamplingParams(
        max_tokens=None,
        stop=tuple(draw(st.lists(st.one_of(parts, STOP), max_size=3))),
        min_tokens=draw(st.sampled_from([0, 0, 1, 3, 20])),
        include_stop_str_in_output=draw(st.booleans()),
        skip_special_tokens=draw(st.booleans()),
    )
    return vocabulary, ids, params, draw(any_ids)


@st.composite
def chunked(draw, ids):
    borders = draw(st.lists(st.integers(0, len(ids)), max_size=6).map(sorted))
    return [ids[a:b] for a, b in zip([0, *borders], [*borders, len(ids)], strict=True)]


@settings(max_examples=1000)
@given(st.data(), answers())
@pytest.mark.slow
def test_the_joined_deltas_are_the_whole_text_cut_at_the_stop_in_any_chunking(data, answer):
    vocabulary, ids, params, prompt = answer
    text, stop = plain(vocabulary, ids, params, prompt)
    for chunks in (data.draw(chunked(ids)), [ids], [[i] for i in ids]):
        deltas, detokenizer = run(vocabulary, chunks, params, prompt)
        assert "".join(deltas) == text
        assert detokenizer.stop_reason == stop


@settings(max_examples=500)
@given(answers())
@pytest.mark.slow
def test_all_that_is_settled_is_shown_at_once(answer):
    vocabulary, ids, params, _ = answer
    detokenizer = Detokenizer(vocabulary, params)
    taken = b""
    for token_id in ids:
        detokenizer.push([token_id])
        if detokenizer.stop_reason is not None:
            break
        if not (params.skip_special_tokens and token_id in vocabulary.special):
            taken += vocabulary.pieces[token_id]
        text = settled(taken)
        beginnings = [stop[:n] for stop in params.stop for n in range(1, len(stop))]
        held = max((len(b) for b in beginnings if text.endswith(b)), default=0)
        assert detokenizer.text == text[: len(text) - held]


@settings(max_examples=300)
@given(answers())
def test_the_ids_that_count_end_with_the_one_that_completed_the_stop(answer):
    vocabulary, ids, params, _ = answer
    _, detokenizer = run(vocabulary, [ids], params)
    stop, n = detokenizer.stop_reason, detokenizer.num_tokens
    if stop is None:
        assert n == len(ids)
    elif "\ufffd" not in stop:  # the end of the ids makes one too
        assert plain(vocabulary, ids[:n], params)[1] == stop
        assert plain(vocabulary, ids[: n - 1], params)[1] is None


@settings(max_examples=500)
@given(
    st.text("ab", max_size=12),
    st.integers(0, 12),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
)
def test_stop_at_finds_what_one_sees_first_who_reads_one_character_after_the_other(
    text, start, stops
):
    expected = next(
        (
            (end - len(stop), stop)
            for end in range(start + 1, len(text) + 1)
            for stop in stops
            if text[:end].endswith(stop)
        ),
        None,
    )
    assert stop_at(text, start, stops) == expected


def test_an_answer_asks_for_each_id_once_and_for_few_of_a_long_prompt():
    vocabulary = Vocabulary(["word "])
    detokenizer = Detokenizer(vocabulary, SamplingParams(stop="x"), [0] * 100_000)
    for _ in range(1000):
        detokenizer.push([0])
    assert vocabulary.num_asked <= 1000 + 4


BYTES = Vocabulary([bytes([b]) for b in range(256)])


def test_a1_a_character_of_four_tokens_comes_whole():
    deltas, _ = run(BYTES, [[b] for b in EMOJI + b"!"], SamplingParams())
    assert deltas == ["", "", "", "\N{OCTOPUS}", "!", ""]


@pytest.mark.parametrize("chunks", [[[b] for b in EMOJI[:2]], [EMOJI[:2]]])
def test_a2_a_character_cut_by_the_length_limit_is_one_replacement_at_the_end(chunks):
    deltas, _ = run(BYTES, chunks, SamplingParams())
    assert deltas == [""] * len(chunks) + ["\ufffd"]


def test_a4_a_character_begun_by_the_prompt_is_completed_and_the_prompt_is_not_shown():
    prompt = b"What is " + EMOJI[:2]
    deltas, _ = run(BYTES, [[b] for b in EMOJI[2:] + b"!"], SamplingParams(), prompt)
    assert deltas == ["", "\N{OCTOPUS}", "!", ""]


def test_a4_a_character_that_only_the_prompt_began_is_not_shown():
    prompt = b"What is " + EMOJI[:2]
    assert run(BYTES, [b"x"], SamplingParams(), prompt)[0] == ["x", ""]
    assert run(BYTES, [b""], SamplingParams(), prompt)[0] == ["", ""]


def test_a4_a_character_that_prompt_and_answer_began_is_one_replacement():
    prompt = b"What is " + EMOJI[:2]
    assert run(BYTES, [EMOJI[2:3] + b"x"], SamplingParams(), prompt)[0] == ["\ufffdx", ""]
    assert run(BYTES, [EMOJI[2:3]], SamplingParams(), prompt)[0] == ["", "\ufffd"]


@pytest.mark.parametrize("prompt", [b"", b"say DEF", b"\xff\xff\xff\xff", b"\x80\x80\x80\x80"])
def test_a4_a_prompt_that_ends_with_whole_characters_changes_nothing(prompt):
    params = SamplingParams(stop="DEFG")
    assert run(BYTES, [b"G", b"DEF", b"H"], params, prompt)[0] == ["G", "", "DEFH", ""]


def test_a5_no_part_of_a_stop_string_is_shown():
    vocabulary = Vocabulary(["DEF", "G", "HI", "J"])
    deltas, detokenizer = run(vocabulary, [[0], [1], [2], [3]], SamplingParams(stop="DEFGHIJ"))
    assert deltas == [""] * 5
    assert detokenizer.stop_reason == "DEFGHIJ"


def test_a7_a_stop_string_is_found_across_tokens():
    vocabulary = Vocabulary(["alpha beta", " gamma delta"])
    deltas, detokenizer = run(vocabulary, [[0], [1]], SamplingParams(stop="beta gamma"))
    assert deltas == ["alpha ", "", ""]
    assert detokenizer.stop_reason == "beta gamma"


def test_a8_text_held_back_in_vain_is_shown_once():
    vocabulary = Vocabulary(["DEF", "G", "x"])
    params = SamplingParams(stop="DEFGHIJ")
    assert run(vocabulary, [[0], [1], [2]], params)[0] == ["", "", "DEFGx", ""]
    assert run(vocabulary, [[0], [1]], params)[0] == ["", "", "DEFG"]


@pytest.mark.parametrize("chunks", [[[0], [1], [2]], [[0, 1, 2]]])
@pytest.mark.parametrize("included", [False, True])
def test_a10_the_stop_string_is_shown_if_asked_for_streamed_or_not(chunks, included):
    vocabulary = Vocabulary(["one ST", "OP two", " three"])
    params = SamplingParams(stop="STOP", include_stop_str_in_output=included)
    deltas, detokenizer = run(vocabulary, chunks, params)
    assert "".join(deltas) == ("one STOP" if included else "one ")
    assert detokenizer.num_tokens == 2
    assert (detokenizer.push([0]), detokenizer.finish()) == ("", "")


@pytest.mark.parametrize(("skipped", "text"), [(True, "say STx"), (False, "say ST<|end|>x")])
def test_a11_the_text_before_a_special_token_is_whole(skipped, text):
    vocabulary = Vocabulary(["say ", "ST", "<|end|>", "x"], special={2})
    params = SamplingParams(stop="STOP", skip_special_tokens=skipped)
    assert "".join(run(vocabulary, [[0], [1], [2]], params)[0]) == text[:-1]
    assert "".join(run(vocabulary, [[0], [1], [2], [3]], params)[0]) == text


def test_a11_a_special_token_that_is_not_shown_splits_neither_characters_nor_stop_strings():
    vocabulary = Vocabulary([EMOJI[:2], EMOJI[2:], "ST", "OP", "<|end|>"], special={4})
    deltas, detokenizer = run(
        vocabulary, [[0], [4], [1], [2], [4], [3]], SamplingParams(stop="STOP")
    )
    assert deltas == ["", "", "\N{OCTOPUS}", "", "", "", ""]
    assert detokenizer.stop_reason == "STOP"


def test_n8_text_without_spaces_is_shown_as_it_comes():
    text = "ไม่มีช่องว่าง_x=f(y)"
    deltas, _ = run(Vocabulary(text), [[i] for i in range(len(text))], SamplingParams(stop="\n"))
    assert deltas == [*text, ""]


def test_h22_bytes_that_are_no_text_are_replaced_and_the_text_goes_on():
    deltas, _ = run(BYTES, [[b] for b in b"a\xff\xc3\xc3\xa9"], SamplingParams())
    assert deltas == ["a", "\ufffd", "", "\ufffd", "é", ""]


def test_of_two_stop_strings_the_one_complete_first_ends_the_text():
    vocabulary = Vocabulary(["abc"])
    for stops in (("abc", "b"), ("b", "abc")):
        deltas, detokenizer = run(vocabulary, [[0]], SamplingParams(stop=stops))
        assert (deltas, detokenizer.stop_reason) == (["a", ""], "b")


def test_of_two_stop_strings_complete_together_the_one_listed_first_ends_the_text():
    vocabulary = Vocabulary(["xabc"])
    assert run(vocabulary, [[0]], SamplingParams(stop=("bc", "abc")))[0] == ["xa", ""]
    assert run(vocabulary, [[0]], SamplingParams(stop=("abc", "bc")))[0] == ["x", ""]


def test_the_end_of_the_ids_can_complete_a_stop_string():
    deltas, detokenizer = run(BYTES, [b"ab" + EMOJI[:2]], SamplingParams(stop="b\ufffd"))
    assert (deltas, detokenizer.stop_reason) == (["a", ""], "b\ufffd")


def test_a_stop_string_counts_if_it_ends_after_min_tokens():
    vocabulary = Vocabulary(["STOP", "ST", "OP", "x"])

    def text(ids, min_tokens):
        params = SamplingParams(stop="STOP", min_tokens=min_tokens)
        return "".join(run(vocabulary, [[i] for i in ids], params)[0])

    assert text([0, 3, 0, 3], 0) == ""
    assert text([0, 3, 0, 3], 1) == "STOPx"
    assert text([3, 1, 2, 3], 2) == "x"
    assert text([3, 1, 2, 3], 3) == "xSTOPx"
    assert text([0, 0], 2) == "STOPSTOP"
