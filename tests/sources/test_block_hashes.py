from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.config import ConfigValue
from tracekit.hashing import chain_ids
from tracekit.sources.block_hashes import chained_lists, stored_block_size

IDS = st.lists(st.one_of(st.integers(0, 3), st.integers(-(2**65), 2**65), st.text(max_size=3)), max_size=40)
SIZES = st.sampled_from([(512, 16), (64, 16), (16, 16), (4, 16), (16, 64)])


@settings(deadline=None)
@given(st.lists(st.tuples(st.none() | IDS, st.none() | st.integers(0, 3000)), max_size=30), SIZES)
def test_columns_give_the_hashes_of_each_prompt_alone(
    prompts: list[tuple[list[object] | None, int | None]], sizes: tuple[int, int]
) -> None:
    tokens_per_id, block_size = sizes
    expected = [
        None if ids is None or tokens is None else chain_ids(ids, tokens_per_id, block_size, tokens)
        for ids, tokens in prompts
    ]
    found = chained_lists([ids for ids, _ in prompts], tokens_per_id, block_size, [tokens for _, tokens in prompts])
    assert found.to_list() == expected


def test_many_long_prompts_with_a_few_longer_ones() -> None:
    lists = [list(range(length)) for length in [*range(40), 500, 700]]
    tokens = [len(ids) * 16 for ids in lists]
    assert chained_lists(lists, 16, 16, tokens).to_list() == [
        chain_ids(ids, 16, 16, n) for ids, n in zip(lists, tokens, strict=True)
    ]


def test_hashes_are_stored_at_the_engines_block_size_where_the_ids_can_tell_it() -> None:
    assert stored_block_size(512, {}) == 16
    assert stored_block_size(512, {"block_size": ConfigValue(32, "logged")}) == 32
    assert stored_block_size(20, {"block_size": ConfigValue(16, "logged")}) == 20
