"""The machine is worth what it finds: each planted fault has to break some promise."""

import pytest
from hypothesis import Phase

from composer.errors import ComposerError
from tests import machine_mutants_of_hits  # noqa: F401  # more of them
from tests.machine_mutants import BOUNDARY, MUTANTS
from tests.test_boundary import (
    test_a_hit_is_the_longest_prefix_that_the_definition_allows as hits_by_the_definition,
)
from tests.test_stack_machine import run

FOUND = (AssertionError, ComposerError, LookupError, OSError)


def tell(case):
    """The stories of every run, and some more: what they are depends on the whole code."""
    if case == BOUNDARY:
        hits_by_the_definition()
        return
    for start in "", "again", "and again":
        run(case, 36, start=start, phases=[Phase.generate], report_multiple_bugs=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name, monkeypatch):
    case, mutant = MUTANTS[name]
    mutant(monkeypatch)
    with pytest.raises(FOUND):
        tell(case)


def test_there_is_a_fault_for_each_invariant_of_what_happens():
    assert {name.split("_")[0] for name in MUTANTS} == {
        f"i{n}" for n in (2, 3, 4, 5, 6, 7, 9, 11, 12)
    }
    assert len(MUTANTS) >= 12
