"""Storms from a seed, larger than hypothesis draws: the kernel's tables are the model's."""

import pytest

from tests.kernel.random_cases import random_case
from tests.kernel.test_equality import assert_equal_to_model

SEEDS = 400
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_storms_are_decided_as_the_model_decides_them(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        assert_equal_to_model(random_case(seed), lockstep=seed % 5 != 0)
