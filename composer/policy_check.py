"""Settings of the policy that cannot be, or that only work together."""

from __future__ import annotations

from composer.errors import Problems
from composer.plan import StackPlan
from composer.schema import PolicyConfig, PrefetchPolicy
from composer.units import parse_bytes

LEAST = {
    "write_after_hits": 1,
    "prefetch_min_tokens": 0,
    "prefetch_timeout_s": 0,
    "prefetch_timeout_per_ki_token_s": 0,
    "prefetch_timeout_max_s": 0,
    "renew_pages": 0,
    "refresh_s": 0,
}


def check_policy(policy: PolicyConfig, plan: StackPlan) -> None:
    """Refuse a policy that could not do what it says.

    Raises:
        ConfigError: All that is wrong; settings that contradict each other are named together.
    """
    problems = Problems()
    for name, least in LEAST.items():
        value = getattr(policy, name)
        if not value >= least:
            problems.add(f"policy.{name}", f"is {value}", f"Give at least {least}")
    share = policy.prefetch_host_share
    if not 0 < share <= 1:
        problems.add("policy.prefetch_host_share", f"is {share}", "Give a part: above 0, at most 1")
    try:
        parse_bytes(policy.max_pending)
    except ValueError as error:
        problems.add("policy.max_pending", str(error))
    if not problems.found:
        _check_together(policy, plan, problems)
    problems.raise_if_any()


def _check_together(policy: PolicyConfig, plan: StackPlan, problems: Problems) -> None:
    longest_s, base_s = policy.prefetch_timeout_max_s, policy.prefetch_timeout_s
    if policy.prefetch is PrefetchPolicy.timeout and longest_s < base_s:
        problems.add(
            "policy.prefetch_timeout_max_s",
            f"is {longest_s:g}, less than policy.prefetch_timeout_s, which is {base_s:g}",
            "Give a limit that is no shorter than the shortest wait",
        )
    pages = [one.num_host_slots for one in plan.spaces.values() if one.window_pages is None]
    share, least = policy.prefetch_host_share, policy.prefetch_min_tokens
    room = int(share * min(pages)) * plan.page_size if pages else None
    if room is not None and least > room:
        problems.add(
            "policy.prefetch_min_tokens",
            f"is {least}, and policy.prefetch_host_share {share:g} of the host tier has room for "
            f"{room} tokens: nothing would ever be fetched",
            "Lower one, or raise the other or host.memory",
        )
