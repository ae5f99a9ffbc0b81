"""Families hold rules, presets hold facts; the traps of real config files."""

import ast
from collections.abc import Iterator
from functools import cache

import pytest
import yaml

from composer.config import load_config, to_stack_config
from composer.errors import ConfigError
from composer.expression import Fields
from composer.resolve import resolve
from composer.spec import DTYPE_BYTES
from tests.model_configs import CONF, PRESETS, composed, stack_config

# Fields that no preset's config has, and where they come from.
ELSEWHERE = {
    "dtype": "transformers 5.24, PreTrainedConfig.to_dict",
    "layer_types": "transformers 5.24, KimiLinearConfig",
    "linear_conv_kernel_dim": "transformers 5.24, KimiLinearConfig and Glm5NextTextConfig",
    "linear_head_dim": "transformers 5.24, KimiLinearConfig and Glm5NextTextConfig",
    "linear_num_heads": "transformers 5.24, KimiLinearConfig and Glm5NextTextConfig",
    "attention_head_dim": "the first config.json of nvidia/Nemotron-H-56B-Base-8K",
    "index_topk_pattern": "SGLang 0.5.23, dsa_layer_skips_topk",
    "mamba_ssm_dtype": "SGLang 0.5.23, mamba2_state_dtype",
    "num_nextn_predict_layers": "SGLang 0.5.23, set for drafts whose config.json has no field",
}
_SIZES = ("shape", "parts", "unit_size", "tokens_per_row", "page_multiple", "window_tokens")
_RULES = ("indices", "every", "offset", "freq", "pattern", "num_layers", "num_draft_layers")


@cache
def read(path: str) -> dict:
    return yaml.safe_load((CONF / f"{path}.yaml").read_text())


def parents(path: str) -> Iterator[str]:
    for entry in read(path).get("defaults", []):
        if entry != "_self_":
            yield entry.strip("/").split("@")[0]


def chain(path: str) -> set[str]:
    return {path}.union(*(chain(parent) for parent in parents(path)))


def expressions(node: object, word: str = "") -> Iterator[str]:
    """Every text under a word whose values are expressions, or names of fields."""
    if isinstance(node, dict):
        for key, value in node.items():
            inside = word in ("dims", "dtypes") and not isinstance(value, dict)
            yield from expressions(value, word if inside else key)
    elif isinstance(node, list):
        for value in node:
            yield from expressions(value, word)
    elif isinstance(node, str) and word in (*_SIZES, *_RULES, "dims", "dtypes", "dtype"):
        yield node


def names(text: str) -> set[str]:
    nodes = ast.walk(ast.parse(text, mode="eval"))
    found = {ast.unparse(node) for node in nodes if isinstance(node, (ast.Name, ast.Attribute))}
    return {name for name in found if not any(o.startswith(f"{name}.") for o in found)}


def own_names(path: str) -> set[str]:
    """Names defined by the family, or by any family that composes the snippet."""
    files = [f"family/{file.stem}" for file in (CONF / "family").glob("*.yaml")]
    users = [file for file in files if path in chain(file)]
    defined = {
        name
        for user in users
        for part in chain(user)
        for word in ("dims", "dtypes")
        for name in read(part).get(word, {})
    }
    return defined | {"page_size", "len"} | set(DTYPE_BYTES)


FILES = sorted(f"{g}/{p.stem}" for g in ("family", "pool") for p in (CONF / g).glob("*.yaml"))


@pytest.mark.parametrize("path", FILES)
def test_every_field_a_family_names_is_in_the_config_of_a_preset_that_uses_it(path):
    used = {preset: chain(f"model/{preset}") for preset in PRESETS}
    presets = [preset for preset in PRESETS if path in used[preset]]
    # A family of another dtype has the configs of the one it extends.
    presets = presets or [p for p in PRESETS if set(parents(path)) & used[p]]
    assert presets
    configs = [Fields(read(f"model/{preset}")["config"], 64) for preset in presets]
    text = read(path)
    fields = {name for each in expressions(text) for name in names(each)} - own_names(path)
    lost = {f for f in fields if not any(c.find(f) is not None for c in configs)}
    assert lost <= set(ELSEWHERE)


def test_no_field_from_elsewhere_is_listed_in_vain():
    named = {n for path in FILES for each in expressions(read(path)) for n in names(each)}
    assert set(ELSEWHERE) <= named


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_a_family_and_facts_with_their_source(preset):
    facts = read(f"model/{preset}")
    assert set(facts) == {"defaults", "model", "config"}
    family, own = facts["defaults"]
    assert family.startswith("/family/")
    assert family.endswith("@_here_")
    assert own == "_self_"
    assert set(facts["model"]) == {"name", "source"}
    assert "config.json" in facts["model"]["source"] or "assumed" in facts["model"]["source"]


def with_family(tmp_path, family, config, **more):
    """A preset of a user: a family and a config.json as it came."""
    (tmp_path / "model").mkdir(exist_ok=True)
    preset = {"defaults": [f"/family/{family}@_here_", "_self_"], "model": {"name": "mine"}}
    text = "# @package _global_\n" + yaml.safe_dump({**preset, "config": config, **more})
    (tmp_path / "model" / "mine.yaml").write_text(text)
    return to_stack_config(load_config("mine", extra_dirs=[tmp_path]))


def config_of(preset, **changes):
    config = {**read(f"model/{preset}")["config"], **changes}
    return {name: value for name, value in config.items() if value is not None}


def test_every_spelling_of_index_sharing_gives_the_same_pools(tmp_path):
    listed = config_of("glm_5_2")
    letters = "".join("F" if kind == "full" else "S" for kind in listed["indexer_types"])
    spellings = [
        config_of("glm_5_2", index_topk_freq=None, index_skip_topk_offset=None),
        config_of("glm_5_2", indexer_types=None),
        config_of("glm_5_2", indexer_types=None, index_topk_freq=None, index_topk_pattern=letters),
    ]
    pools = [resolve(with_family(tmp_path, "mla_dsa", each)).pool("indexer") for each in spellings]
    assert {pool.layers for pool in pools} == {(0, 1, 2, *range(6, 78, 4))}
    assert len({tuple(pool.producers.items()) for pool in pools}) == 1
    assert len({pool.buffers for pool in pools}) == 1
    assert pools[0].page_bytes == 64 * 2772
    assert {layer: pools[0].producers[layer] for layer in (3, 5, 7, 77)} == {
        3: 2,
        5: 2,
        7: 6,
        77: 74,
    }


def test_without_an_offset_the_sharing_rule_counts_from_the_second_layer(tmp_path):
    changes = {"indexer_types": None, "index_skip_topk_offset": None}
    spec = resolve(with_family(tmp_path, "mla_dsa", config_of("glm_5_2", **changes)))
    assert spec.pool("indexer").layers == tuple(i for i in range(78) if max(i - 1, 0) % 4 == 0)


def test_a_sharing_pattern_whose_first_layer_shares_is_refused(tmp_path):
    pattern = "S" + "F" * 77
    config = config_of(
        "glm_5_2", indexer_types=None, index_topk_freq=None, index_topk_pattern=pattern
    )
    with pytest.raises(ConfigError, match="layer 0 uses the rows of an earlier layer"):
        resolve(with_family(tmp_path, "mla_dsa", config))


def test_a_misspelt_field_of_a_rule_shows_in_the_rule_that_was_taken():
    rule = resolve(stack_config("deepseek_v3_2")).pool("indexer").layer_rule
    assert rule == "all (no indexer_types, index_topk_pattern, index_topk_freq)"


def test_layer_lists_counted_from_the_wrong_end_do_not_cover_the_model(tmp_path):
    config = composed("glm_5_3_flash").config.text_config
    lists = {"linear_attn_config": dict(config.linear_attn_config)}
    base = {k: v for k, v in dict(config).items() if k != "layer_types"}
    flat = yaml.safe_load(yaml.safe_dump({k: _plain(v) for k, v in {**base, **lists}.items()}))
    good = resolve(with_family(tmp_path, "mla_dsa_kda", flat))
    assert good.pool("kv").layers == tuple(range(3, 45, 4))
    flat["qk_rope_head_dim"] = 64
    with pytest.raises(ConfigError, match="counted from 1"):
        resolve(with_family(tmp_path, "mla_kda", flat))


def _plain(value):
    if hasattr(value, "items"):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if hasattr(value, "append") else value


def test_one_based_lists_become_zero_based_layers():
    spec = resolve(stack_config("kimi_linear_48b"))
    assert spec.pool("kv").layers == (3, 7, 11, 15, 19, 23, 26)
    assert spec.pool("linear").layers[:4] == (0, 1, 2, 4)


@pytest.mark.parametrize(
    ("model", "inner", "expanded"),
    [
        ("nemotron_nano_9b_v2", 10240, 8960),
        ("nemotron_3_nano_30b", 4096, 5376),
        ("falcon_h1_34b", 4096, 10240),
    ],
)
def test_the_inner_width_is_heads_times_head_dim_and_not_expanded_hidden_size(
    model, inner, expanded
):
    config = Fields(read(f"model/{model}")["config"], 64)
    temporal = resolve(stack_config(model)).pool("ssm").buffers[0]
    assert temporal.shape[0] * temporal.shape[1] == inner
    assert (config.find("expand") or config.find("mamba_expand") or 2) * config.find(
        "hidden_size"
    ) == expanded


def test_head_dim_is_no_size_of_a_latent_cache():
    for model, head_dim in (("kimi_linear_48b", 72), ("glm_5", 64), ("glm_5_2", 192)):
        pool = resolve(stack_config(model)).pool("kv")
        assert read(f"model/{model}")["config"]["head_dim"] == head_dim
        assert pool.buffers[0].shape == (576,)
        assert "head_dim" not in dict(pool.buffers[0].fields)


def test_a_shared_block_attends_to_twice_the_hidden_size():
    assert resolve(stack_config("zamba2_7b")).pool("kv").buffers[0].shape == (32, 224)


def test_the_state_of_a_checkpoint_is_not_the_default_of_its_class():
    assert resolve(stack_config("bamba_9b")).pool("ssm").buffers[0].shape == (128, 64, 128)


def test_full_and_windowed_layers_may_have_other_heads():
    spec = resolve(stack_config("gemma4_26b"))
    assert [b.shape for b in spec.pool("kv").buffers] == [(2, 512), (2, 512)]
    assert [b.shape for b in spec.pool("swa").buffers] == [(8, 256), (8, 256)]
    spec = resolve(stack_config("mimo_v2_flash"))
    assert [b.shape for b in spec.pool("kv").buffers] == [(4, 192), (4, 128)]
    assert [b.shape for b in spec.pool("swa").buffers] == [(8, 192), (8, 128)]


def test_a_draft_layer_without_a_field_is_known_to_the_family():
    assert "num_nextn_predict_layers" not in read("model/qwen3_next_80b")["config"]
    assert [p.layers for p in resolve(stack_config("qwen3_next_80b")).draft_pools] == [(48,)]


def test_of_two_numbers_of_draft_layers_the_predicted_ones_count():
    assert [p.layers for p in resolve(stack_config("minimax_m3")).draft_pools] == [(60,)]
    assert [p.layers for p in resolve(stack_config("minimax_m2_5")).draft_pools] == [(62, 63, 64)]


def test_compressed_caches_hang_on_an_anchor_without_bytes():
    spec = resolve(stack_config("deepseek_v4_flash"))
    assert (spec.anchor, spec.pool("kv").buffers, spec.page_size) == ("kv", (), 256)
    assert {p.name for p in spec.spaces["kv"]} == {"kv", "c4", "c4_indexer", "c128"}
    assert {p.name for p in spec.spaces["swa"]} == {
        "swa",
        "c4_state",
        "c4_index_state",
        "c128_state",
    }
    assert (spec.pool("c4").rows_per_page, spec.pool("c128").rows_per_page) == (64, 2)
    config = stack_config("deepseek_v4_flash")
    config.page_size = 64
    with pytest.raises(
        ConfigError, match=r"64 is no multiple of 128 \(pools.c128.tokens_per_row\).*128"
    ):
        resolve(config)


def test_block_scaled_vectors_are_rows_of_their_own(tmp_path):
    spec = resolve(with_family(tmp_path, "mla_dsa_fp8", config_of("deepseek_v3_2")))
    assert spec.pool("kv").page_bytes == 61 * 64 * 656
    assert spec.pool("indexer").page_bytes == 61 * 64 * 132


def test_packed_pages_are_padded_to_whole_blocks(tmp_path):
    spec = resolve(with_family(tmp_path, "mla_compressed_fp8", config_of("deepseek_v4_flash")))
    rows = {"swa": 256, "c4": 64, "c128": 2}
    for name, count in rows.items():
        pool = spec.pool(name)
        assert pool.buffers[0].shape == (-(-count * 584 // 576) * 576,)
        assert pool.rows_per_page == 1


@pytest.mark.parametrize(
    ("model", "pool", "shapes"),
    [
        ("deepseek_v3_2", "kv", {"latent": (512,), "rope": (64,)}),
        ("glm_5_3_flash", "kv", {"latent": (512,)}),
        ("deepseek_v3_2", "indexer", {"key": (128,)}),
        ("qwen3_5_27b", "linear", {"temporal": (48, 128, 128), "conv": (10240, 4)}),
        ("kimi_linear_48b", "linear", {"temporal": (32, 128, 128), "conv": (12288, 4)}),
        ("mamba2_2_7b", "ssm", {"temporal": (80, 64, 128), "conv": (5376, 4)}),
        ("jamba_v0_1", "ssm", {"temporal": (8192, 16), "conv": (8192, 4)}),
        ("lfm2_1_2b", "conv", {"conv": (2048, 3)}),
    ],
)
def test_the_other_convention_keeps_the_same_content_in_its_own_shapes(model, pool, shapes):
    found = resolve(stack_config(model, "transformers")).pool(pool)
    assert {buffer.name: buffer.shape for buffer in found.buffers} == shapes


def test_a_linear_attention_state_has_the_dtype_of_the_convention():
    dtypes = [
        resolve(stack_config("minimax_text_01", engine)).pool("linear").buffers[0].dtype
        for engine in ("sglang", "transformers")
    ]
    assert dtypes == ["float32", "bfloat16"]
