"""Weights in their places, against the state dictionaries that transformers and gguf give."""

from __future__ import annotations

import json
import os
import shutil
import warnings

import gguf
import pytest
import torch
from oracles import dequantized_state_dict
from safetensors.torch import load_file, save_file
from tiny_models import GROUPED, MULTI_QUERY, as_gguf, oracle, random_llama
from torch import nn

from minivllm.checkpoint.model_config import read_model_config
from minivllm.models import loader
from minivllm.models.loader import load_weights

STACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class Linear(nn.Module):
    """Parameters of the given shapes, filled with NaN: what is not loaded is seen."""

    def __init__(self, rows: int, columns: int | None, dtype: torch.dtype, bias: bool = False):
        super().__init__()
        shape = (rows,) if columns is None else (rows, columns)
        self.weight = nn.Parameter(torch.full(shape, torch.nan, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.full((rows,), torch.nan, dtype=dtype))


def skeleton(config, dtype=torch.float32) -> nn.Module:
    """The parameters of a Llama with stacked projections, and nothing that computes."""
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size

    def linear(rows, columns, bias=False):
        return Linear(rows, columns, dtype, bias)

    def layer():
        attention = {
            "qkv_proj": linear(heads + 2 * kv_heads, hidden, config.qkv_bias),
            "o_proj": linear(hidden, heads, config.o_bias),
        }
        mlp = {
            "gate_up_proj": linear(2 * inner, hidden, config.mlp_bias),
            "down_proj": linear(hidden, inner, config.mlp_bias),
        }
        return nn.ModuleDict(
            {
                "input_layernorm": linear(hidden, None),
                "self_attn": nn.ModuleDict(attention),
                "post_attention_layernorm": linear(hidden, None),
                "mlp": nn.ModuleDict(mlp),
            }
        )

    model = nn.ModuleDict(
        {
            "model": nn.ModuleDict(
                {
                    "embed_tokens": linear(config.vocab_size, hidden),
                    "layers": nn.ModuleList(layer() for _ in range(config.num_layers)),
                    "norm": linear(hidden, None),
                }
            )
        }
    )
    if not config.tie_word_embeddings:
        model["lm_head"] = linear(config.vocab_size, hidden)
    model.stacked = STACKED
    return model


def loaded(path, dtype=torch.float32) -> dict[str, torch.Tensor]:
    """What the loader put in place, under Hugging Face's names, the stacked ones cut apart."""
    config = read_model_config(path)
    model = skeleton(config, dtype)
    load_weights(model, config, dtype, "cpu")
    rows = {
        "qkv_proj": [
            config.num_heads * config.head_dim,
            *[config.num_kv_heads * config.head_dim] * 2,
        ],
        "gate_up_proj": [config.intermediate_size] * 2,
    }
    state = {}
    for name, value in model.state_dict().items():
        *prefix, module, kind = name.split(".")
        parts = STACKED.get(module, [module])
        cut = value.split(rows[module]) if module in STACKED else [value]
        for part, values in zip(parts, cut, strict=True):
            state[".".join([*prefix, part, kind])] = values
    return state


def assert_same(ours, theirs, dtype=torch.float32):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.dtype == dtype
        assert torch.equal(value, theirs[name].to(dtype)), name


def copy_of(folder, tmp_path, change=lambda state: None):
    """A copy of a single-file checkpoint after change(state dictionary)."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    state = load_file(copy / "model.safetensors")
    change(state)
    save_file(state, copy / "model.safetensors")
    return copy


def sharded(tmp_path, num_shards=3):
    """A copy of a random Llama in several files, with an index. Returns it and its state."""
    folder = copy_of(random_llama(tmp_path), tmp_path)
    state = load_file(folder / "model.safetensors")
    os.remove(folder / "model.safetensors")
    weight_map = {name: f"shard-{i % num_shards}.safetensors" for i, name in enumerate(state)}
    for shard in set(weight_map.values()):
        part = {name: value for name, value in state.items() if weight_map[name] == shard}
        save_file(part, folder / shard)
    write_index(folder, weight_map)
    return folder, state, weight_map


def write_index(folder, weight_map):
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("shape", [GROUPED, MULTI_QUERY])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ("float32", "float32"),
        ("bfloat16", "float64"),
        ("float16", "float32"),
        ("float64", "bfloat16"),
    ],
)
def test_k1_every_parameter_is_transformers_own(tmp_path, shape, tied, stored, wanted):
    """Tied and untied, in every dtype; a tied model's files hold no head."""
    folder = random_llama(tmp_path, dtype=stored, tie_word_embeddings=tied, **shape)
    assert ("lm_head.weight" in load_file(f"{folder}/model.safetensors")) is not tied
    theirs = oracle(folder, getattr(torch, stored)).state_dict()
    if tied:
        assert theirs.pop("lm_head.weight") is not None
    wanted = getattr(torch, wanted)
    assert_same(loaded(folder, wanted), theirs, wanted)


def test_k5_biases_are_loaded_where_the_configuration_has_them(tmp_path):
    folder = random_llama(tmp_path, attention_bias=True, mlp_bias=True)
    ours = loaded(folder)
    assert sum(name.endswith("bias") for name in ours) == 2 * 7
    assert_same(ours, oracle(folder).state_dict())


def test_a_tensor_is_loaded_in_pieces_without_a_second_copy(tmp_path, monkeypatch):
    """The largest tensor that is ever read is one piece, or one row if a row is longer."""
    sizes = []

    def watched(raw, type, shape):
        sizes.append(torch.Size(shape).numel())
        return read_floats(raw, type, shape)

    read_floats = loader._read_floats
    monkeypatch.setattr(loader, "_read_floats", watched)
    monkeypatch.setattr(loader, "_PIECE", 50)
    folder = random_llama(tmp_path)
    assert_same(loaded(folder), oracle(folder).state_dict())
    assert max(sizes) == 60, "o_proj has rows of 60"


def test_k2_a_stored_head_equal_to_the_embedding_is_skipped_in_silence(tmp_path):
    def add_head(state):
        state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()

    folder = copy_of(random_llama(tmp_path, tie_word_embeddings=True), tmp_path, add_head)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = loaded(folder)
    assert "lm_head.weight" not in ours


@pytest.mark.parametrize("change", ["one number", "shape"])
def test_k2_a_stored_head_that_differs_from_its_tied_embedding_gives_a_warning(tmp_path, change):
    def add_head(state):
        head = state["model.embed_tokens.weight"].clone()
        head[330, 23] += 1
        state["lm_head.weight"] = head if change == "one number" else head[:330].clone()

    original = random_llama(tmp_path, tie_word_embeddings=True)
    folder = copy_of(original, tmp_path, add_head)
    with pytest.warns(UserWarning, match=r"lm_head\.weight differs from the embedding"):
        assert_same(loaded(folder), load_file(f"{original}/model.safetensors"))


def test_k4_a_sharded_checkpoint_is_loaded_whole(tmp_path):
    folder, state, _ = sharded(tmp_path)
    assert_same(loaded(folder), state)


def test_k4_an_index_that_names_a_missing_file_is_an_error(tmp_path):
    folder, _, _ = sharded(tmp_path)
    os.remove(folder / "shard-1.safetensors")
    with pytest.raises(ValueError, match=r"shard-1\.safetensors: .*it is not there"):
        loaded(folder)


def test_k4_an_index_that_promises_a_tensor_its_file_lacks_is_an_error(tmp_path):
    folder, _, weight_map = sharded(tmp_path)
    weight_map["model.norm.weight"] = "shard-0.safetensors"
    weight_map["model.embed_tokens.weight"] = "shard-1.safetensors"
    write_index(folder, weight_map)
    with pytest.raises(ValueError, match=r"shard-\d\.safetensors: the index promises tensor model"):
        loaded(folder)


def test_k4_files_without_an_index_are_an_error(tmp_path):
    folder, _, _ = sharded(tmp_path)
    os.remove(folder / "model.safetensors.index.json")
    with pytest.raises(ValueError, match=r"neither model\.safetensors nor .*index\.json"):
        loaded(folder)


def test_a_tensor_in_two_files_is_an_error_with_both(tmp_path):
    folder, state, _ = sharded(tmp_path)
    for shard in ("shard-0.safetensors", "shard-1.safetensors"):
        part = load_file(folder / shard)
        save_file(part | {"model.norm.weight": state["model.norm.weight"]}, folder / shard)
    with pytest.raises(
        ValueError, match=r"model\.norm\.weight is in .*shard-\d.* and in .*shard-\d"
    ):
        loaded(folder)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"weight_map": [1]}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": "../model.safetensors"}}',
    ],
)
def test_an_index_that_is_none_is_refused(tmp_path, content):
    folder, _, _ = sharded(tmp_path)
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=r"index\.json: this is no index"):
        loaded(folder)


@pytest.mark.parametrize("which", range(21))
def test_any_tensor_that_is_missing_or_of_a_wrong_shape_is_named(tmp_path, which):
    """One after another, each tensor of the file: taken out, cut by a row, wrapped."""
    folder = random_llama(tmp_path)
    names = sorted(load_file(f"{folder}/model.safetensors"))
    assert len(names) == 21
    name = names[which]
    copy = copy_of(folder, tmp_path, lambda state: state.pop(name))
    with pytest.raises(ValueError, match=rf"copy: the checkpoint lacks tensor {name}$"):
        loaded(copy)
    for index, change in enumerate((lambda value: value[:-1], lambda value: value[None])):
        (tmp_path / str(index)).mkdir()

        def wrong(state, change=change):
            state[name] = change(state[name])

        copy = copy_of(folder, tmp_path / str(index), wrong)
        with pytest.raises(ValueError, match=rf"tensor {name} has shape \[.*but the model's"):
            loaded(copy)


def test_tensors_left_over_are_named_and_those_that_do_no_harm_are_not(tmp_path):
    def add(state):
        state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(5)

    folder = copy_of(random_llama(tmp_path), tmp_path, add)
    assert not any("inv_freq" in name for name in loaded(folder))
    state = load_file(folder / "model.safetensors")
    for i in range(7):
        state[f"model.layers.2{i}.extra.weight"] = torch.ones(5)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"no place for tensors model\.layers\.20\.extra.* and 2 more"
    ):
        loaded(folder)


def test_a_head_in_the_file_of_an_untied_model_must_be_there(tmp_path):
    folder = copy_of(random_llama(tmp_path, tie_word_embeddings=True), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(ValueError, match=r"lacks tensor lm_head\.weight"):
        loaded(folder)


def test_numbers_of_a_type_that_is_no_float_are_refused_with_the_tensor(tmp_path):
    def to_bytes(state):
        state["model.norm.weight"] = state["model.norm.weight"].to(torch.int8)

    folder = copy_of(random_llama(tmp_path), tmp_path, to_bytes)
    with pytest.raises(ValueError, match=r"tensor model\.norm\.weight: type I8 is not supported"):
        loaded(folder)


GGUF_SIZES = {
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_file_gives_the_folder_it_was_made_from(tmp_path, tied):
    """Names, Q and K rows back in halves, biases, tied or not: nothing is lost in F32."""
    folder = random_llama(
        tmp_path, tie_word_embeddings=tied, attention_bias=True, mlp_bias=True, **GGUF_SIZES
    )
    theirs = oracle(folder).state_dict()
    if tied:
        del theirs["lm_head.weight"]
    assert_same(loaded(as_gguf(folder, tmp_path / "a.gguf", "F32")), theirs)


@pytest.mark.parametrize("piece", [1 << 22, 100])
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_a_quantized_gguf_file_gives_what_the_gguf_package_dequantizes(
    tmp_path, monkeypatch, kind, piece
):
    monkeypatch.setattr(loader, "_PIECE", piece)
    path = as_gguf(random_llama(tmp_path, **GGUF_SIZES), tmp_path / "a.gguf", kind)
    reader = gguf.GGUFReader(path)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    assert_same(loaded(path), dequantized_state_dict(reader, facts, torch.float32))


def test_a_gguf_tensor_that_is_missing_left_over_or_of_an_unknown_type_is_named(tmp_path):
    folder = random_llama(tmp_path, **GGUF_SIZES)
    path = as_gguf(folder, tmp_path / "a.gguf", "F32", leave_out=("blk.1.ffn_up.weight",))
    with pytest.raises(ValueError, match=r"a\.gguf: the checkpoint lacks tensor blk\.1\.ffn_up\.w"):
        loaded(path)
    path = as_gguf(folder, tmp_path / "a.gguf", "F32")
    with open(path, "r+b") as file:
        content = file.read()
        name = b"blk.1.attn_q.weight"
        file.seek(content.index(name) + len(name) + 4 + 2 * 8)
        file.write((999).to_bytes(4, "little"))
    with pytest.raises(ValueError, match=r"'blk\.1\.attn_q\.weight' is of unknown type 999"):
        loaded(path)
    with open(path, "r+b") as file:
        file.write(content.replace(b"output_norm.weight", b"input_extra.weight"))
    with pytest.raises(ValueError, match=r"lacks tensor output_norm\.weight"):
        loaded(path)
    (tmp_path / "c").mkdir()
    biased = random_llama(tmp_path, attention_bias=True, **GGUF_SIZES)
    path = as_gguf(biased, tmp_path / "a.gguf", "F32", leave_out=("blk.0.attn_q.bias",))
    with pytest.raises(
        ValueError, match=r"no place for tensors blk\.0\.attn_k\.bias, .*blk\.1\.attn_v\.bias$"
    ):
        loaded(path)


def test_the_real_model_is_what_the_gguf_package_makes_of_it(smollm2, smollm2_hf):
    theirs = load_file(f"{smollm2_hf}/model.safetensors")
    assert_same(loaded(smollm2), theirs)
    assert_same(loaded(smollm2, torch.bfloat16), theirs, torch.bfloat16)
