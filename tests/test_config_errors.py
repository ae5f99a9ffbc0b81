"""Bad configuration: each mistake with its place, its value and what to do, all at once."""

from __future__ import annotations

import pickle
import re

import pytest

from composer.config import attach_origins, load_config, to_stack_config
from composer.errors import ConfigError


@pytest.fixture
def refused(presets):
    """Problems of a request that must be refused, as their texts."""

    def refused(model="tiny", *overrides, **options) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            to_stack_config(load_config(model, overrides, extra_dirs=[presets.folder], **options))
        return [str(problem) for problem in caught.value.problems]

    return refused


def test_an_unknown_preset_is_answered_with_the_nearest_and_all_there_are(refused):
    (problem,) = refused("tinny")
    assert problem.startswith("override 'model=tinny': model: there is no 'tinny'.")
    assert "Did you mean 'tiny'?" in problem
    assert "Known:" in problem


@pytest.mark.parametrize("group", ["layout", "backend", "policy", "parallel", "job", "trace"])
def test_an_unknown_choice_of_any_group_is_answered_with_the_known_ones(refused, group):
    (problem,) = refused("tiny", f"{group}=nonsense")
    assert f"override '{group}=nonsense': {group}: there is no 'nonsense'. Known: " in problem


def test_several_unknown_choices_are_reported_together(refused):
    assert len(refused("tinny", "layout=page_frst", "backend=s3")) == 3


@pytest.mark.parametrize(
    ("override", "key", "fix"),
    [
        ("page_sise=3", "page_sise", "page_size"),
        ("pools.indexr.unit=page", "pools.indexr", "indexer"),
        ("pools.indexer.layrs=all", "pools.indexer.layrs", "layers"),
        ("pools.kv.buffers.latent.dtipe=uint8", "pools.kv.buffers.latent.dtipe", "dtype"),
        ("layot=page_first", "layot", "layout"),
        ("backend.segmnt=1GiB", "backend.segmnt", "segment"),
        ("parallel.tp.sice=2", "parallel.tp.sice", "size"),
        ("~pools.indexr", "pools.indexr", "indexer"),
        ("+pools.kv.layrs=all", "pools.kv.layrs", "layers"),
        ("++pools.kv.buffers.latent.shap=[1]", "pools.kv.buffers.latent.shap", "shape"),
    ],
)
def test_a_misspelt_override_is_answered_with_the_key_that_was_meant(refused, override, key, fix):
    (problem,) = refused("tiny", override)
    assert problem.startswith(f"override '{override}': {key}: ")
    assert f"Did you mean '{fix}'?" in problem


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("page_size=abc", "page_size: 'abc' is not an integer"),
        ("page_size=1.5", "page_size: 1.5 is not an integer"),
        ("draft=maybe", "draft: 'maybe' is not true or false"),
        ("pools.kv.unit=tokn", "pools.kv.unit: 'tokn' is not a choice. Did you mean 'token'?"),
        ("pools.kv.weight=heavy", "pools.kv.weight: 'heavy' is not a number"),
        ("pools.kv.buffers.latent.shape=8", "shape: 8 is not a list"),
        ("pools.kv.buffers.latent.shape=[2.5]", "shape[0]: 2.5 is not an integer or an expression"),
        ("pools.kv.tokens_per_row=true", "tokens_per_row: True is not an integer or an expression"),
        ("pools.kv.buffers=3", "pools.kv.buffers: 3 is not a mapping"),
        ("pools=3", "pools: 3 is not a mapping"),
        ("model.name=null", "model.name: None is not text"),
        ("host=null", "host: None is not a mapping"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_with_what_is_wanted(refused, override, reason):
    (problem,) = refused("tiny", override)
    assert problem.startswith(f"override '{override}': ")
    assert reason in problem


def test_mistakes_in_a_file_are_named_with_file_and_line_all_at_once(refused, presets):
    path = presets.write_model(
        "mine",
        "pagesize: 64\n"
        "pools:\n"
        "  kv:\n"
        "    required: perhaps\n"
        "    buffers:\n"
        "      latent: {shape: [2.5]}\n"
        "  indexer:\n"
        "    hit_polcy: all_pages\n",
    )
    assert sorted(refused("mine", "host.memry=1GiB"), key=_line) == [
        "override 'host.memry=1GiB': host.memry: there is no key 'memry' here."
        " Did you mean 'memory'?",
        f"{path}:3: pagesize: there is no key 'pagesize' here. Did you mean 'page_size'?",
        f"{path}:6: pools.kv.required: 'perhaps' is not true or false",
        f"{path}:8: pools.kv.buffers.latent.shape[0]: 2.5 is not an integer or an expression",
        f"{path}:10: pools.indexer.hit_polcy: there is no key 'hit_polcy' here."
        " Did you mean 'hit_policy'?",
    ]


def _line(problem):
    """The line of a problem in a file; 0 for an override."""
    return int(re.match(r"(?:\S+\.yaml:(\d+))?", problem)[1] or 0)


def test_a_missing_value_is_named_with_the_line_of_its_section(refused, presets):
    path = presets.write_model("mine", "pools:\n  ring:\n    buffers:\n      k: {shape: [4]}\n")
    assert refused("mine") == [f"{path}:6: pools.ring.buffers.k.dtype: has no value, and needs one"]


def test_a_preset_that_extends_nothing_there_is_named_with_its_line(refused, presets):
    path = presets.write("model/mine.yaml", "defaults:\n  - tinny@_here_\n  - _self_\n")
    (problem,) = refused("mine")
    assert problem.startswith(f"{path}:2: model: there is no 'tinny'. Did you mean 'tiny'?")


def test_a_file_that_is_no_yaml_is_named_with_its_line(refused, presets):
    path = presets.write_model("mine", "pools:\n  kv: {layers: {all}\n")
    (problem,) = refused("mine")
    assert problem.startswith(f"{path}:")
    assert "is no YAML" in problem


def test_an_override_that_does_not_parse_is_quoted(refused):
    assert refused("tiny", "page_size") == [
        "override 'page_size': missing EQUAL at '<EOF>'. Write KEY=VALUE"
    ]


def test_a_sweep_is_refused_outside_the_command(refused):
    (problem,) = refused("tiny", "page_size=32,64")
    assert "page_size=32,64" in problem


def test_a_folder_and_a_root_that_do_not_exist_are_refused(refused, tmp_path):
    with pytest.raises(ConfigError, match="there is no folder"):
        load_config("tiny", extra_dirs=[tmp_path / "nowhere"])
    (problem,) = refused("tiny", config_name="nowhere")
    assert "nowhere" in problem


def test_an_engine_that_nobody_knows_is_refused_and_one_that_only_this_family_lacks_is_not(refused):
    (problem,) = refused("tiny", "engine=transformer")
    assert problem == (
        "override 'engine=transformer': engine: there is no engine convention 'transformer'."
        " Did you mean 'transformers'?"
    )


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("layout.axes=[page,page]", "[page, page] is no order of the axes"),
        ("pools.kv.layout=[page,buffer]", "[page, buffer] is no order of the axes"),
        ("pools.kv.layout=page_frst", "there is no layout 'page_frst'. Did you mean 'page_first'?"),
        ("pools.kv.layout=3", "3 is neither the name of a layout nor a list of axes"),
    ],
)
def test_axes_are_each_named_once(refused, override, reason):
    (problem,) = refused("tiny", override)
    assert problem.startswith(f"override '{override}': ")
    assert reason in problem


def test_a_mistake_in_an_overlay_is_found_when_its_engine_is_chosen(refused, presets):
    presets.write_model("mine", "engines: {lab: {pools: {kv: {bufers: {}}}}}\n")
    (problem,) = refused("mine", "engine=lab")
    assert "there is no key 'bufers' here. Did you mean 'buffers'?" in problem


def test_every_interpolation_that_does_not_resolve_is_named(refused, presets):
    path = presets.write_model("mine", "page_size: ${nothing.here}\ncheckpoint_tokens: ${nope}\n")
    assert refused("mine") == [
        f"{path}:3: page_size: '${{nothing.here}}' does not resolve:"
        " Interpolation key 'nothing.here' not found",
        f"{path}:4: checkpoint_tokens: '${{nope}}' does not resolve:"
        " Interpolation key 'nope' not found",
    ]


def test_errors_found_later_get_their_origin_from_the_request(presets):
    path = presets.write_model("mine", "checkpoint_tokens: 100\n")
    found = ConfigError.of("checkpoint_tokens", "is 100", "Use 128")
    named = attach_origins(found, "mine", ["page_size=48"], extra_dirs=[presets.folder])
    assert str(named) == f"{path}:3: checkpoint_tokens: is 100. Use 128"
    found = ConfigError.of("parallel.tp", "there is no rank 3 of 2")
    overrides = ["parallel.tp.size=2", "parallel.tp.rank=3"]
    named = attach_origins(found, "mine", overrides, extra_dirs=[presets.folder])
    assert named.problems[0].origin == "override 'parallel.tp.rank=3'"


def test_a_default_of_the_schema_has_no_origin(presets):
    found = ConfigError.of("layers_per_pool", "is too small")
    assert attach_origins(found, "tiny", extra_dirs=[presets.folder]).problems[0].origin == ""


def test_an_error_survives_the_way_between_processes(refused, presets):
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", ["page_size=a", "draft=b"], extra_dirs=[presets.folder])
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.problems == caught.value.problems
