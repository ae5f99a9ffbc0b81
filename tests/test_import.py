"""hf_config=PATH: a model's config.json in place of a preset, as it is."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from composer.config import attach_origins, load_config, load_stack_config, to_stack_config
from composer.errors import ConfigError
from composer.hf_import import HfConfig
from composer.plan import make_plan
from composer.resolve import resolve
from composer.stack import compose
from tests.hf_tiny import MODELS, REFUSED
from tests.model_configs import CONF, ENGINES, PRESETS, stack_config

FILES = Path(__file__).parent / "hf_configs"
TABLE = yaml.safe_load((CONF / "import" / "model_types.yaml").read_text())


def planned(config):
    config.backend = {"name": "memory"}
    config.host.memory = config.device.memory = "64GiB"
    return make_plan(config, resolve(config))


def imported(path, *overrides, **more):
    return load_stack_config(overrides=[f"hf_config={path}", *overrides], **more)


def refused(path, *overrides, **more):
    with pytest.raises(ConfigError) as caught:
        imported(path, *overrides, **more)
    assert len(caught.value.problems) == 1
    return str(caught.value)


@pytest.fixture
def write(tmp_path):
    """Writes a config.json: the fields of a preset's, with changes; None removes a field."""

    def write(preset, name="config.json", **changes):
        fields = {**json.loads((FILES / f"{preset}.json").read_text()), **changes}
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({k: v for k, v in fields.items() if v is not None}))
        return path

    return write


@pytest.mark.parametrize("model", PRESETS)
def test_a_config_file_is_its_preset(model):
    preset = stack_config(model)
    config = imported(FILES / f"{model}.json", f"model.name={preset.model.name}")
    preset.model.source = config.model.source
    assert asdict(config) == asdict(preset)
    for engine in ENGINES:
        one, other = (
            stack_config(model, engine),
            load_config(
                overrides=[f"hf_config={FILES / model}.json", f"model.name={preset.model.name}"]
            ),
        )
        other.engine = engine
        plans = [planned(one), planned(to_stack_config(other))]
        assert plans[0].spec == plans[1].spec
        assert plans[0].namespace == plans[1].namespace
        assert [a.namespace for a in plans[0].arenas] == [a.namespace for a in plans[1].arenas]


def test_every_line_of_the_table_is_the_type_of_a_known_config_file_or_of_a_model_that_runs_here():
    files = [HfConfig.read(str(path)) for path in FILES.glob("*.json")]
    assert len(files) == 49
    assert set(TABLE) <= {name for file in files for name in file.types()} | {*MODELS, *REFUSED}
    assert {f"{family}.yaml" for family in TABLE.values()} <= {
        path.name for path in (CONF / "family").iterdir()
    }


def test_a_model_is_called_what_its_file_says_or_else_by_folder_or_file(write):
    assert imported(write("qwen3_8b", _name_or_path="org/it")).model.name == "org/it"
    assert imported(write("qwen3_8b", "My-Model/config.json")).model.name == "My-Model"
    assert imported(write("qwen3_8b", "My-Model/other.v2.json")).model.name == "other.v2"
    assert imported(write("qwen3_8b"), "model.name=mine").model.name == "mine"


def test_a_folder_stands_for_the_config_file_in_it(write):
    path = write("qwen3_8b", "Qwen3/config.json")
    assert imported(path.parent) == imported(path)


def test_a_nested_text_config_says_the_type_where_the_outer_one_is_unknown(write):
    config = imported(write("qwen3_5_9b", model_type="a_wrapper", architectures=["Unheard"]))
    assert list(config.pools) == ["kv", "draft_kv", "linear"]


def test_an_architecture_finds_the_family_where_no_type_does(write, tmp_path):
    path = write("qwen3_8b", model_type=None)
    assert "without a model_type" not in refused(path)  # the architecture is its type then
    (tmp_path / "import").mkdir()
    (tmp_path / "import" / "mine.yaml").write_text("Qwen3ForCausalLM: mha\n")
    assert "kv" in imported(path, extra_dirs=[tmp_path]).pools


def test_lines_of_a_users_own_table_win_over_ours(write, tmp_path):
    (tmp_path / "import").mkdir()
    (tmp_path / "import" / "mine.yaml").write_text("deepseek_v32: mla_dsa_fp8\n")
    config = imported(write("deepseek_v3_2"), extra_dirs=[tmp_path])
    assert resolve(config).pool("kv").page_bytes == 61 * 64 * 656
    assert "kv" in imported(FILES / "qwen3_8b.json", extra_dirs=[tmp_path]).pools


def test_a_family_can_be_chosen_by_hand(write):
    path = write("deepseek_v3_2", model_type="unheard", architectures=None)
    config = imported(path, "hf_family=mla_dsa_fp8")
    assert resolve(config).pool("kv").page_bytes == 61 * 64 * 656
    text = refused(path, "hf_family=mla_dsa_fp9")
    assert "there is no family 'mla_dsa_fp9'" in text
    assert "Did you mean 'mla_dsa_fp8'?" in text


def test_an_unknown_type_is_told_the_families_that_come_near_and_what_they_miss(write):
    text = json.loads((FILES / "qwen3_5_9b.json").read_text())["text_config"]
    lacking = {k: v for k, v in text.items() if k not in ("model_type", "linear_num_key_heads")}
    path = write("qwen3_5_9b", model_type="unheard", architectures=None, text_config=lacking)
    message = refused(path)
    assert "a model of the type 'unheard'" in message
    assert "mha (has all its fields)" in message
    assert "mha_gdn (lacks linear_num_key_heads)" in message
    assert "hf_family=NAME" in message
    assert "'unheard: NAME' to import/mine.yaml" in message
    assert "kda" not in message  # far away


def test_a_family_that_lacks_much_names_all_of_it(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"num_hidden_layers": 2, "hidden_size": 8}')
    message = refused(path)
    assert "a model without a model_type" in message
    assert "mha (lacks num_attention_heads)" in message
    assert "mla (lacks kv_lora_rank, qk_rope_head_dim)" in message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "config.json:1: hf_config: is no JSON"),
        (b'{\n  "a": 1,\n  oops\n}', "config.json:3: hf_config: is no JSON: Expecting property"),
        (b"[1, 2]", "holds no JSON object"),
        (b"\xff\xfe\x00", "cannot read"),
        (b"[" * 100_000, "is nested too deeply"),
        (None, "cannot read"),
    ],
)
def test_a_file_that_is_no_config_is_one_message_and_exit_code_2(kvpool, tmp_path, content, said):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    message = refused(path)
    assert said in message
    ended = kvpool("job=plan", f"hf_config={path}")
    assert (ended.code, ended.out, ended.err) == (2, "", f"kvpool: error: {message}\n")


def test_a_model_is_chosen_once(write):
    with pytest.raises(ConfigError, match="'model=qwen3_8b' both choose the model"):
        load_stack_config("qwen3_8b", [f"hf_config={write('qwen3_8b')}"])
    with pytest.raises(ConfigError, match="hf_family: 'mha' says how hf_config is read"):
        load_stack_config(overrides=["hf_family=mha"])


def test_a_page_size_of_the_family_holds_and_an_override_wins_over_it():
    path = FILES / "deepseek_v4_flash.json"
    assert imported(path).page_size == 256
    assert imported(path, "page_size=512").page_size == 512
    with pytest.raises(ConfigError, match="page_size 64 is no multiple of 128"):
        resolve(imported(path, "page_size=64"))


def test_a_field_is_overridden_and_a_misspelt_one_refused():
    path = FILES / "qwen3_8b.json"
    assert resolve(imported(path, "config.num_hidden_layers=5")).num_layers == 5
    assert "there is no 'num_layers' here" in refused(path, "config.num_layers=5")


def test_texts_that_look_like_references_are_no_concern_of_a_preset(write):
    strange = {"chat_template": "${env:HOME} ${x}", "list": ["${a}"], "unset": "???"}
    config = imported(write("qwen3_8b", task={"deep": "${oc.env:X}"}, **strange))
    assert config.config.keys() & strange.keys() == set()
    assert resolve(config).num_layers == 36


def test_a_list_may_stand_in_place_of_the_number_of_layers():
    fields = json.loads((FILES / "nemotron_3_ultra_550b.json").read_text())
    assert "num_hidden_layers" not in fields
    spec = resolve(imported(FILES / "nemotron_3_ultra_550b.json"))
    assert spec.num_layers == len(fields["layers_block_type"]) == 108


def test_lists_of_layers_count_from_0_or_from_1_as_the_family_says(write):
    fields = json.loads((FILES / "glm_5_3_flash.json").read_text())["text_config"]
    lists = {k: v for k, v in fields.items() if k != "layer_types"}
    from_0 = resolve(imported(write("glm_5_3_flash", text_config=lists)))
    assert from_0.pool("kv").layers == tuple(range(3, 45, 4))
    from_1 = resolve(imported(FILES / "kimi_linear_48b.json"))
    assert from_1.pool("kv").layers == (3, 7, 11, 15, 19, 23, 26)


def test_every_spelling_of_shared_index_layers_is_one_namespace(write):
    types = json.loads((FILES / "glm_5_2.json").read_text())["indexer_types"]
    listed = {"index_topk_freq": None, "index_skip_topk_offset": None}
    letters = "".join("F" if each == "full" else "S" for each in types)
    paths = [
        write("glm_5_2", "a/config.json", **listed),
        write("glm_5_2", "b/config.json", indexer_types=None),
        write("glm_5_2", "c/config.json", indexer_types=None, index_topk_pattern=letters, **listed),
    ]
    plans = [planned(imported(path, "model.name=one")) for path in paths]
    for plan in plans:
        indexer = plan.spec.pool("indexer")
        assert indexer.layers == (0, 1, 2, *range(6, 75, 4))
        assert len(indexer.layers) == 21
        assert indexer.page_bytes == 2_772 * plan.page_size
    assert len({plan.namespace for plan in plans}) == 1
    assert len({tuple(arena.namespace for arena in plan.arenas) for plan in plans}) == 1


def test_a_mistake_in_the_file_is_told_with_its_line(tmp_path, write):
    path = write("qwen3_8b", "config.json")
    path.write_text(path.read_text().replace(', "num_key', ',\n\t"num_key').replace(": 8", ": [8]"))
    with pytest.raises(ConfigError) as caught:
        resolve(imported(path))
    assert "field 'num_key_value_heads' is [8], not a whole number" in str(caught.value)
    named = attach_origins(ConfigError.of("config.num_key_value_heads", "is wrong"), None,
                           [f"hf_config={path}"])  # fmt: skip
    assert named.problems[0].origin == f"{path}:2"


def test_a_stack_is_composed_from_a_config_file():
    overrides = [f"hf_config={FILES / 'qwen3_5_9b.json'}", "layers_per_pool=1", "backend=memory"]
    with compose(overrides=[*overrides, "host.memory=256MiB", "device.memory=128MiB"]) as stack:
        assert {pool.name for pool in stack.plan.spec.pools} == {"kv", "linear"}


def test_a_config_that_is_loaded_needs_its_file_no_more(write):
    path = write("qwen3_8b")
    config = load_config(overrides=[f"hf_config={path}"])
    path.unlink()
    assert config.hf_family == "mha"
    assert to_stack_config(config).model.name


def test_the_command_takes_a_config_file_for_any_job(kvpool):
    path = FILES / "kimi_linear_48b.json"
    ended = kvpool("job=plan", f"hf_config={path}", "json=plan.json", "host.memory=4GiB")
    assert (ended.code, ended.err) == (0, "")
    data = json.loads(Path("plan.json").read_text())
    assert len(data["pools"]["linear"]["layers"]) == 20
    assert data["origins"]["config.num_hidden_layers"].startswith(f"{path}:")
    assert data["origins"]["host.memory"] == "override 'host.memory=4GiB'"
    ended = kvpool("job=plan", f"hf_config={path}", "pools.kv.tokens_per_row=3")
    assert ended.code == 2
    assert "page_size 64 is no multiple of 3 (pools.kv.tokens_per_row)" in ended.err


def test_a_sweep_goes_over_config_files(kvpool):
    paths = [str(FILES / f"{name}.json") for name in ("qwen3_8b", "lfm2_1_2b")]
    assert kvpool("-m", "job=plan", f"hf_config={','.join(paths)}", "json=plan.json").code == 0
    results = sorted(Path("sweeps").glob("*/*/plan.json"))
    assert [json.loads(path.read_text())["model"] for path in results] == ["qwen3_8b", "lfm2_1_2b"]


def test_tokens_of_one_index_key_are_those_of_the_file_and_not_of_a_class(write):
    text = json.loads((FILES / "glm_5_3_flash.json").read_text())["text_config"]
    assert resolve(imported(FILES / "glm_5_3_flash.json")).pool("indexer").page_bytes == (
        11 * 256 // 4 * 132
    )
    silent = {name: value for name, value in text.items() if name != "index_kpool"}
    path = write("glm_5_3_flash", text_config=silent)
    assert resolve(imported(path)).pool("indexer").page_bytes == 11 * 256 * 132


def test_an_entry_behind_the_layers_is_the_draft_layers_own():
    fields = json.loads((FILES / "deepseek_v4_flash.json").read_text())
    assert len(fields["compress_ratios"]) == fields["num_hidden_layers"] + 1
    spec = resolve(imported(FILES / "deepseek_v4_flash.json"))
    assert max(spec.pool("c4").layers) == 42
    assert [pool.layers for pool in spec.draft_pools] == [(43,)]
