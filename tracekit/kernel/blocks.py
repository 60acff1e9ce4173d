"""KV blocks: the pool and what requests hold of it (``model/block_pool.py``, ``model/kv_cache.py``).

Without prefix caching a block has no identity: only counts change. With it, the free queue is a doubly linked list
through the block and blocks of one content chain are linked in the order in which they were stored.
"""

from tracekit.kernel.compiling import compiled, inlined
from tracekit.kernel.layout import (
    BOUND_FULL_PROMPT,
    BOUND_KV_BLOCKS,
    BOUND_NONE,
    BOUND_WATERMARK,
    NAMED,
    NO_OWNER,
    NONE,
    Record,
)
from tracekit.kernel.references import block_at, chain_at, hash_at, held_at, request_at, slot_at


@inlined
def full_blocks(engine: Record, num_tokens: int) -> int:
    """Blocks that so many tokens fill; a division is most of what some steps cost, so it is a shift where it can be."""
    if engine.block_shift >= 0:
        return int(num_tokens >> engine.block_shift)
    return int(num_tokens // engine.block_size)


@inlined
def blocks_for(engine: Record, num_tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return full_blocks(engine, num_tokens + engine.block_size - 1)


@inlined
def usage(engine: Record, num_free_blocks: int) -> float:
    """Share of the blocks in use while so many are free."""
    if engine.usage_blocks == 0:
        return 0.0
    return float(1.0 - num_free_blocks / engine.usage_blocks)


@compiled
def grow(engine: Record, index: int, num_new_tokens: int) -> bool:
    """Give a running request the blocks for its next tokens; False when there are not enough free ones."""
    request = request_at(engine, index)
    num_tokens = request.num_computed_tokens + num_new_tokens
    missing = blocks_for(engine, num_tokens) - request.num_blocks
    if missing > 0:
        if missing > engine.num_free_blocks:
            return False
        take(engine, index, missing)
    if engine.caching:
        store_full_blocks(engine, index, min(num_tokens, request.num_tokens))
    return True


@compiled
def take(engine: Record, index: int, missing: int) -> None:
    """Hand out free blocks to a request."""
    request = request_at(engine, index)
    if engine.num_preallocated > 0:
        missing = min(missing + engine.num_preallocated, engine.num_free_blocks, engine.max_blocks - request.num_blocks)
    if engine.caching:
        for position in range(request.num_blocks, request.num_blocks + missing):
            block = engine.free_head
            leave_free_queue(engine, block)
            block_at(engine, block).references = 1
            if block_at(engine, block).owner != NO_OWNER:
                forget(engine, block)
            held_at(engine, request.slot, position).block = block
    engine.num_free_blocks -= missing
    request.num_blocks += missing


@compiled
def find_hits(engine: Record, index: int) -> int:
    """The longest cached prefix, at most all tokens but one; its blocks are listed in the next free slot."""
    request = request_at(engine, index)
    slot = slot_at(engine, engine.num_free_slots - 1).free
    num_hits = full_blocks(engine, request.num_tokens - 1)
    for position in range(num_hits):
        block = find(engine, index, position)
        if block == NONE:
            num_hits = position
            break
        held_at(engine, slot, position).block = block
    engine.hits_are_listed = True
    return int(num_hits)


@compiled
def watched_hits(engine: Record, index: int) -> int:
    """``find_hits`` for the head of the queue, which is asked at every step: looked up anew only when it has changed.

    What it hit carries the number of the watch: when such a block is forgotten, or the first missing content is
    stored, the watch ends; when it is referenced first or last, the count of unreferenced hits follows.
    """
    request = request_at(engine, index)
    if engine.is_watching and engine.watch_request == index and engine.watch_tokens == request.num_tokens:
        engine.hits_are_listed = False
        return int(engine.watch_hits)
    num_hits = find_hits(engine, index)
    slot = slot_at(engine, engine.num_free_slots - 1).free
    engine.is_watching = True
    engine.watch_request = index
    engine.watch_tokens = request.num_tokens
    engine.watch_hits = num_hits
    engine.watch_number += 1
    engine.watch_unreferenced = 0
    for position in range(num_hits):
        block = block_at(engine, held_at(engine, slot, position).block)
        if block.references == 0:
            engine.watch_unreferenced += 1
        if block.watch == engine.watch_number:  # a trace that names one content twice in a prompt: do not count on it
            engine.is_watching = False
        block.watch = engine.watch_number
    engine.watch_owner = _owner(engine, index, num_hits)
    engine.watch_content = _content(engine, index, num_hits)
    return num_hits


@compiled
def shortage(engine: Record, index: int, num_hits: int, num_tokens: int) -> int:
    """What forbids admitting a request with ``num_tokens`` computed after this step, as a bound."""
    request = request_at(engine, index)
    free = engine.num_free_blocks + num_hits
    if num_hits > 0:
        free -= engine.watch_unreferenced
    reserve = engine.watermark_blocks if engine.num_running > 0 else 0
    needed = blocks_for(engine, num_tokens)
    if needed > free:
        return BOUND_KV_BLOCKS
    if needed + reserve > free:
        return BOUND_WATERMARK
    if engine.full_prompt_gate:
        needed = max(needed, blocks_for(engine, request.num_tokens))
        if needed > free:
            return BOUND_FULL_PROMPT
        if needed + reserve > free:
            return BOUND_WATERMARK
    return BOUND_NONE


@compiled
def admit_blocks(engine: Record, index: int, num_hits: int, num_tokens: int) -> None:
    """Give a waiting request its hits and the blocks for ``num_tokens``."""
    request = request_at(engine, index)
    request.num_blocks = num_hits
    request.num_hashed_blocks = num_hits
    if engine.caching:
        if not engine.hits_are_listed:
            find_hits(engine, index)
        engine.num_free_slots -= 1
        slot = slot_at(engine, engine.num_free_slots).free
        request.slot = slot
        for position in range(num_hits):
            block = held_at(engine, slot, position).block
            if block_at(engine, block).references == 0:
                leave_free_queue(engine, block)
                engine.num_free_blocks -= 1
                if block_at(engine, block).watch == engine.watch_number:
                    engine.watch_unreferenced -= 1
            block_at(engine, block).references += 1
    missing = blocks_for(engine, num_tokens) - num_hits
    if missing > 0:
        take(engine, index, missing)
    if engine.caching:
        store_full_blocks(engine, index, min(num_tokens, request.num_tokens))


@compiled
def store_full_blocks(engine: Record, index: int, num_tokens: int) -> None:
    """Make the full blocks among the first ``num_tokens`` findable."""
    request = request_at(engine, index)
    num_full = full_blocks(engine, num_tokens)
    while request.num_hashed_blocks < num_full:
        store(engine, index, request.num_hashed_blocks)
        request.num_hashed_blocks += 1


@compiled
def free_blocks(engine: Record, index: int) -> int:
    """Take all blocks of a request back, tail first, and say how many became free."""
    request = request_at(engine, index)
    if not engine.caching:
        num_freed = request.num_blocks
        engine.num_free_blocks += num_freed
        request.num_blocks = 0
        return int(num_freed)
    if request.slot == NONE:
        return 0
    before = engine.num_free_blocks
    # Unhashed blocks are the last ones of a request; put to the front from its end on, the last one first.
    for position in range(request.num_blocks - 1, -1, -1):
        block = held_at(engine, request.slot, position).block
        record = block_at(engine, block)
        record.references -= 1
        if record.references > 0:
            continue
        engine.num_free_blocks += 1
        if record.watch == engine.watch_number:
            engine.watch_unreferenced += 1
        if record.owner != NO_OWNER or not engine.unhashed_blocks_first:
            join_free_queue_end(engine, block)
    if engine.unhashed_blocks_first:
        for position in range(request.num_hashed_blocks, request.num_blocks):
            join_free_queue_front(engine, held_at(engine, request.slot, position).block)
    slot_at(engine, engine.num_free_slots).free = request.slot
    engine.num_free_slots += 1
    request.slot = NONE
    request.num_blocks = 0
    request.num_hashed_blocks = 0
    return int(engine.num_free_blocks - before)


@inlined
def _owner(engine: Record, index: int, position: int) -> int:
    return NAMED if position < request_at(engine, index).num_hashes else index


@inlined
def _content(engine: Record, index: int, position: int) -> int:
    if position < request_at(engine, index).num_hashes:
        return int(hash_at(engine, request_at(engine, index).hashes_start + position).content)
    return position


@inlined
def _chain(engine: Record, owner: int, content: int) -> int:
    """The chain that a content belongs to: a multiplicative hash (Knuth), its upper bits."""
    mixed = (content ^ (owner * -7046029254386353131)) * -4417276706812531889
    return int((mixed >> engine.bucket_shift) & (num_chains(engine) - 1))


@inlined
def num_chains(engine: Record) -> int:
    """Number of content chains, a power of two."""
    return int(1 << (64 - engine.bucket_shift))


@inlined
def find(engine: Record, index: int, position: int) -> int:
    """The first block that was stored with this content, or ``NONE``."""
    owner = _owner(engine, index, position)
    content = _content(engine, index, position)
    block = chain_at(engine, _chain(engine, owner, content)).head
    while block != NONE:
        record = block_at(engine, block)
        if record.content == content and record.owner == owner:
            break
        block = record.same_following
    return int(block)


@inlined
def store(engine: Record, index: int, position: int) -> None:
    """Make a full block findable by its content, behind those that hold the same."""
    owner = _owner(engine, index, position)
    content = _content(engine, index, position)
    block = held_at(engine, request_at(engine, index).slot, position).block
    record = block_at(engine, block)
    record.owner = owner
    record.content = content
    if content == engine.watch_content and owner == engine.watch_owner:
        engine.is_watching = False
    chain = _chain(engine, owner, content)
    record.same_previous = chain_at(engine, chain).tail
    record.same_following = NONE
    if record.same_previous == NONE:
        chain_at(engine, chain).head = block
    else:
        block_at(engine, record.same_previous).same_following = block
    chain_at(engine, chain).tail = block


@inlined
def forget(engine: Record, block: int) -> None:
    """A block is handed out again: nobody finds its content there any more."""
    record = block_at(engine, block)
    if record.watch == engine.watch_number:
        engine.is_watching = False
        record.watch = 0
    chain = _chain(engine, record.owner, record.content)
    if record.same_previous == NONE:
        chain_at(engine, chain).head = record.same_following
    else:
        block_at(engine, record.same_previous).same_following = record.same_following
    if record.same_following == NONE:
        chain_at(engine, chain).tail = record.same_previous
    else:
        block_at(engine, record.same_following).same_previous = record.same_previous
    record.owner = NO_OWNER


@inlined
def leave_free_queue(engine: Record, block: int) -> None:
    """A free block is used (again)."""
    record = block_at(engine, block)
    if record.free_previous == NONE:
        engine.free_head = record.free_following
    else:
        block_at(engine, record.free_previous).free_following = record.free_following
    if record.free_following == NONE:
        engine.free_tail = record.free_previous
    else:
        block_at(engine, record.free_following).free_previous = record.free_previous


@inlined
def join_free_queue_end(engine: Record, block: int) -> None:
    """A block becomes free and will be handed out last."""
    record = block_at(engine, block)
    record.free_previous = engine.free_tail
    record.free_following = NONE
    if engine.free_tail == NONE:
        engine.free_head = block
    else:
        block_at(engine, engine.free_tail).free_following = block
    engine.free_tail = block


@inlined
def join_free_queue_front(engine: Record, block: int) -> None:
    """A block becomes free and will be handed out next."""
    record = block_at(engine, block)
    record.free_previous = NONE
    record.free_following = engine.free_head
    if engine.free_head == NONE:
        engine.free_tail = block
    else:
        block_at(engine, engine.free_head).free_previous = block
    engine.free_head = block
