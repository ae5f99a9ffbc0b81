"""H2 on our own settings: what cannot be, and what only works together, is told when composing."""

import pytest

from composer.errors import ConfigError
from composer.stack_plan import plan_stack
from tests.engine import PAGE, config


def problems(**policy):
    with pytest.raises(ConfigError) as caught:
        plan_stack(config("kv+window+state", policy=policy))
    return {problem.key: str(problem) for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write_after_hits", 0),
        ("prefetch_min_tokens", -1),
        ("prefetch_timeout_s", -0.5),
        ("prefetch_timeout_per_ki_token_s", -1.0),
        ("prefetch_timeout_max_s", -1.0),
        ("prefetch_host_share", 0.0),
        ("prefetch_host_share", 1.5),
        ("prefetch_host_share", float("nan")),
        ("max_pending", "much"),
        ("renew_pages", -1),
        ("refresh_s", -1.0),
    ],
)
def test_a_value_that_cannot_be_is_named(name, value):
    assert list(problems(**{name: value})) == [f"policy.{name}"]


def test_all_of_them_are_told_at_once():
    found = problems(write_after_hits=0, max_pending="much", renew_pages=-1)
    assert list(found) == ["policy.write_after_hits", "policy.renew_pages", "policy.max_pending"]


def test_h2_a_limit_below_the_shortest_wait_names_both():
    found = problems(prefetch="timeout", prefetch_timeout_s=5.0, prefetch_timeout_max_s=2.0)
    assert "policy.prefetch_timeout_s" in found["policy.prefetch_timeout_max_s"]


def test_h2_a_threshold_that_the_share_can_never_reach_names_both():
    policy = {"prefetch_min_tokens": 8 * PAGE + 1, "prefetch_host_share": 0.5}  # 16 pages
    found = problems(**policy)
    assert "policy.prefetch_host_share" in found["policy.prefetch_min_tokens"]
    plan_stack(config("kv+window+state", policy={**policy, "prefetch_min_tokens": 8 * PAGE}))


def test_a_limit_that_no_wait_uses_is_no_contradiction():
    plan_stack(config("kv", policy={"prefetch_timeout_s": 5.0, "prefetch_timeout_max_s": 2.0}))
