"""What is compiled to get ready: the blocks that a conversation's next turn names of the previous answer."""

from tracekit.kernel.compiling import compiled_entry
from tracekit.kernel.layout import NONE, Array


@compiled_entry
def name_generated_blocks(
    hashes: Array, starts: Array, counts: Array, parents: Array, num_prompt: Array, num_output: Array, block_size: int
) -> None:
    """Give a parent the hashes of the blocks it will generate: a child's hashes behind the parent's prompt name them.

    ``starts`` and ``counts`` say which part of ``hashes`` each request has; a parent that gains names gets its child's
    part, since what it had is the beginning of that.
    """
    for child in range(len(parents)):
        parent = parents[child]
        if parent in (NONE, child):
            continue
        held = counts[parent]
        end = min((num_prompt[parent] + num_output[parent]) // block_size, counts[child])
        if held < num_prompt[parent] // block_size or end <= held:
            continue
        is_same = True
        for position in range(held):
            if hashes[starts[child] + position] != hashes[starts[parent] + position]:
                is_same = False
                break
        if is_same:
            starts[parent] = starts[child]
            counts[parent] = end
