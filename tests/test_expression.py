import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.errors import ConfigError
from composer.expression import AbsentError, Fields, evaluate, evaluate_dtype, evaluate_size

CONFIG = {
    "heads": 8,
    "head_dim": 64,
    "hidden_size": 4096,
    "null_field": None,
    "pattern": "M-M*",
    "kinds": ["a", "b", "c"],
    "flag": True,
    "half": 0.5,
    "linear": {"num_heads": 32, "deep": {"er": 7}},
    "torch_dtype": "bfloat16",
    "dtype": "torch.float16",
}


def fields(config=CONFIG, **settings):
    return Fields(config, settings.pop("page_size", 64), **settings)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (5, 5),
        ("5", 5),
        ("heads", 8),
        ("2 * heads + head_dim % 10", 20),
        ("(hidden_size - 1) // heads", 511),
        ("page_size * 132", 8448),
        ("linear.num_heads", 32),
        ("linear.deep.er + 1", 8),
        ("missing or heads", 8),
        ("null_field or missing or head_dim", 64),
        ("heads or missing", 8),
        ("(missing + heads) or 3", 3),
        ("len(kinds) + len(pattern)", 7),
    ],
)
def test_an_expression_has_the_value_of_its_arithmetic(text, value):
    assert evaluate(text, fields()) == value


def test_zero_is_a_value_and_not_missing():
    assert evaluate("layers or 3", fields({"layers": 0})) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2 ** 100000", "not arithmetic"),
        ("heads / 2", "not arithmetic"),
        ("-1", "not arithmetic"),
        ("__import__('os').system('true')", "not arithmetic"),
        ("len(kinds, kinds)", "not arithmetic"),
        ("(lambda: 1)()", "not arithmetic"),
        ("heads if flag else 2", "not arithmetic"),
        ("heads and 2", "not arithmetic"),
        ("'text'", "not arithmetic"),
        ("True", "not arithmetic"),
        ("heads +", "not arithmetic"),
        ("1\x00", "not arithmetic"),
        ("", "not arithmetic"),
        ("heads // 0", "divides by zero"),
        ("heads % (heads - 8)", "divides by zero"),
        ("kinds + 1", "not a whole number"),
        ("flag + 1", "not a whole number"),
        ("half * 2", "not a whole number"),
        ("pattern", "not a whole number"),
        ("len(heads)", "not a list"),
        ("+".join(["1"] * 5000), "characters"),
        (None, "neither a whole number nor an expression"),
    ],
)
def test_what_is_no_arithmetic_over_whole_numbers_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        evaluate(text, fields())


def test_an_unknown_name_lists_the_fields_and_names_the_nearest():
    with pytest.raises(AbsentError) as error:
        evaluate("hidden_sise + 1", fields())
    text = str(error.value)
    assert "'hidden_sise'" in text
    assert "Did you mean 'hidden_size'?" in text
    assert all(name in text for name in CONFIG)


def test_an_absent_name_survives_pickling():
    with pytest.raises(AbsentError) as error:
        evaluate("nothing", fields())
    copy = pickle.loads(pickle.dumps(error.value))
    assert (copy.name, str(copy)) == (error.value.name, str(error.value))


def test_the_text_config_is_searched_first_also_for_dotted_names():
    config = {"heads": 1, "only": 5, "text_config": {"heads": 2, "linear": {"n": 3}, "null": None}}
    inner = fields({**config, "linear": {"n": 4, "m": 6}, "null": 9})
    values = [evaluate(name, inner) for name in ("heads", "only", "linear.n", "linear.m", "null")]
    assert values == [2, 5, 3, 6, 9]


def test_only_fields_that_were_read_are_recorded():
    record = fields(dims={"width": "head_dim * 2"})
    evaluate("missing or width * heads + page_size + len(kinds)", record)
    assert record.read == {"head_dim": 64, "heads": 8, "len(kinds)": 3}
    assert record.recorder().read == {}


def test_a_dim_stands_for_its_expression_and_in_its_own_definition_for_the_field():
    dims = {
        "head_dim": "head_dim * 2",
        "wide": "head_dim + two",
        "two": 2,
        "loop": "pool",
        "pool": "loop",
    }
    assert evaluate("head_dim", fields(dims=dims)) == 128
    assert evaluate("wide", fields(dims=dims)) == 130
    with pytest.raises(AbsentError, match="'loop'"):
        evaluate("loop", fields(dims=dims))


def test_a_size_below_its_least_is_refused():
    with pytest.raises(ConfigError, match=r"'heads - 8' is 0. It must be at least 1"):
        evaluate_size("heads - 8", fields())
    assert evaluate_size("heads - 8", fields(), least=0) == 0


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("float32", "float32"),
        ("torch.uint8", "uint8"),
        ("torch_dtype", "bfloat16"),
        ("dtype", "float16"),
        ("kv_dtype", "bfloat16"),
        ("state_dtype", "float32"),
        ("missing or kv_dtype", "bfloat16"),
    ],
)
def test_a_dtype_is_looked_up_in_dtypes_then_in_the_config_then_by_name(text, dtype):
    dtypes = {"kv_dtype": "torch_dtype or float16", "state_dtype": "ssm_dtype or float32"}
    assert evaluate_dtype(text, dtypes, fields()) == dtype


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bflot16", "Did you mean 'bfloat16'"),
        ("heads", "not a dtype"),
        ("kv + 1", "is no dtype"),
        ("loop", "defined by itself"),
    ],
)
def test_what_names_no_dtype_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        evaluate_dtype(text, {"loop": "loop"}, fields())


_NAMES = st.sampled_from(["a", "b", "c"])
_TERMS = st.recursive(
    _NAMES | st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(
        lambda parts: f"({' '.join(parts)})"
    ),
    max_leaves=8,
)


@given(_TERMS, st.fixed_dictionaries({"a": st.integers(), "b": st.integers(), "c": st.integers()}))
def test_arithmetic_agrees_with_python_for_any_nesting(text, config):
    assert evaluate(text, fields(config)) == eval(text, {}, config)
