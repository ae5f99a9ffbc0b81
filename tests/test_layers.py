import pytest

from composer.errors import ConfigError
from composer.expression import Fields
from composer.layers import Choice, LayerScope, choose, producers

CONFIG = {
    "interval": 4,
    "kinds": ["full", "shared", "shared", "full"],
    "letters": "FSSF",
    "ratios": [0, 4, 4, 0, 9],
    "from_one": [1, 4],
    "text_config": {"nested": {"layers": [0, 2]}},
}


def scope(num_layers=4, num_draft_layers=1, config=CONFIG, others=None):
    return LayerScope(Fields(config, 64), num_layers, num_draft_layers, (others or {}).__getitem__)


@pytest.mark.parametrize(
    ("layers", "chosen"),
    [
        ("all", (0, 1, 2, 3)),
        (["all"], (0, 1, 2, 3)),
        ("draft", (4,)),
        ([{"indices": [2, 0]}], (0, 2)),
        ([{"indices": "from_one", "base": 1}], (0, 3)),
        ([{"indices": "nested.layers", "base": 0}], (0, 2)),
        ([{"every": 2}], (0, 2)),
        ([{"every": "interval", "offset": "interval - 1"}], (3,)),
        ([{"pattern": "kinds", "value": "shared"}], (1, 2)),
        ([{"pattern": "letters", "value": "F"}], (0, 3)),
        ([{"pattern": "ratios", "value": 4}], (1, 2)),
        ([{"producers": {"freq": 2, "offset": 1}}], (0, 2)),
        ([{"complement_of": "other"}], (1, 2, 3)),
    ],
)
def test_a_selector_chooses_global_layer_numbers(layers, chosen):
    assert choose(layers, scope(others={"other": (0,)})).layers == chosen


def test_all_never_takes_draft_layers_and_draft_only_those():
    assert choose("all", scope(3, 2)).layers == (0, 1, 2)
    choice = choose("draft", scope(3, 2))
    assert (choice.layers, choice.draft) == ((3, 4), True)
    assert choose("draft", scope(3, 0)).layers == ()


def test_the_first_selector_whose_fields_exist_is_taken_and_the_missing_are_named():
    rules = [
        {"pattern": "absent_types", "value": "full"},
        {"producers": {"freq": "absent_freq", "offset": 3}},
        {"every": "interval", "offset": "absent_offset or 1"},
        "all",
    ]
    choice = choose(rules, scope())
    assert choice.layers == (1,)
    assert choice.rule == "every interval, offset absent_offset or 1 (no absent_types, absent_freq)"


def test_without_a_selector_that_applies_the_fields_are_listed():
    with pytest.raises(ConfigError, match=r"no selector applies.*no kimds.*Did you mean 'kinds'"):
        choose([{"pattern": "kimds", "value": "full"}], scope())


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (None, "layers is None"),
        ([], "layers is"),
        ("al", "layers is 'al'"),
        (["al"], "Did you mean 'all'"),
        ([{"every": 2, "indices": [1]}], "of 2 kinds"),
        ([{"ofset": 1}], "of 0 kinds"),
        ([{"every": 2, "ofset": 1}], "Did you mean 'offset'"),
        ([{"every": 2, "offset": 4}], "chooses no layer"),
        ([{"every": 0}], "must be at least 1"),
        ([{"every": 1.5}], "neither a whole number nor an expression"),
        ([{"indices": [1, 1]}], "name layers twice: \\[1\\]"),
        ([{"indices": [4]}], "counted from 1"),
        ([{"indices": "from_one", "base": 0}], "Are they counted from 1"),
        ([{"indices": [0, 1], "base": 1}], "Are they counted from 0"),
        ([{"indices": [0], "base": 2}], "counted from 0 or from 1"),
        ([{"indices": "interval"}], "not a list of whole numbers"),
        ([{"indices": [True]}], "not a list of whole numbers"),
        ([{"indices": []}], "chooses no layer"),
        ([{"pattern": "kinds"}], "needs a field's name and a value"),
        ([{"pattern": "kinds", "value": "ful"}], "Did you mean 'full'"),
        ([{"pattern": "interval", "value": 4}], "neither a list nor text"),
        ([{"producers": {"freq": 2}}], "Write {freq"),
        ([{"complement_of": "every"}], "chooses no layer"),
    ],
)
def test_a_wrong_selector_says_what_is_wrong(layers, words):
    with pytest.raises(ConfigError, match=words):
        choose(layers, scope(others={"every": (0, 1, 2, 3)}))


def test_every_wrong_selector_of_a_list_is_reported():
    with pytest.raises(ConfigError) as error:
        choose([{"evry": 1}, "al", "all"], scope())
    assert len(error.value.problems) == 2


@pytest.mark.parametrize("num_layers", [3, 5])
def test_a_pattern_must_cover_the_layers_and_may_go_on_only_for_draft_layers(num_layers):
    pattern = [{"pattern": "letters", "value": "F"}]
    assert choose(pattern, scope(3, 1)).layers == (0,)
    with pytest.raises(ConfigError, match="has 4 entries for"):
        choose(pattern, scope(num_layers, 0))


def test_producers_are_the_nearest_earlier_owners():
    choice = Choice((0, 3), "", shared=True)
    assert producers(choice, range(6)) == {1: 0, 2: 0, 4: 3, 5: 3}
    assert producers(choice, (0, 2, 5)) == {2: 0, 5: 3}


def test_a_layer_that_shares_before_any_owner_is_refused():
    choice = choose([{"pattern": "letters", "value": "S", "shared": True}], scope())
    assert choice.shared
    with pytest.raises(ConfigError, match="layer 0 uses the rows of an earlier layer"):
        producers(choice, range(4))


def test_spellings_of_one_sharing_rule_choose_the_same_layers():
    full = [i for i in range(78) if max(i - 2, 0) % 4 == 0]
    config = {
        "types": ["full" if i in full else "shared" for i in range(78)],
        "letters": "".join("F" if i in full else "S" for i in range(78)),
        "freq": 4,
        "offset": 3,
    }
    rules = [
        {"pattern": "types", "value": "full", "shared": True},
        {"pattern": "letters", "value": "F", "shared": True},
        {"producers": {"freq": "freq", "offset": "offset"}},
    ]
    chosen = {(c.layers, c.shared) for c in (choose([r], scope(78, 0, config)) for r in rules)}
    assert chosen == {((0, 1, 2, *range(6, 78, 4)), True)}
