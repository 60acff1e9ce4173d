"""Which of V0's two block managers a version has by default."""

from tracekit.config import EngineConfig
from tracekit.model.block_space_manager_v1 import BlockSpaceManagerV1
from tracekit.model.block_space_manager_v2 import BlockSpaceManagerV2
from tracekit.model.rules import Rules

BlockSpaceManager = BlockSpaceManagerV1 | BlockSpaceManagerV2


def block_space_manager(config: EngineConfig, rules: Rules) -> BlockSpaceManager:
    """The block manager of an engine (``BlockSpaceManager.get_block_space_manager_class``)."""
    if rules.v0_block_manager == "v1":
        return BlockSpaceManagerV1(
            config.block_size,
            config.num_gpu_blocks,
            config.num_cpu_blocks,
            caching=config.enable_prefix_caching,
            last_full_block_counts=rules.v0_last_full_block_counts,
        )
    return BlockSpaceManagerV2(
        config.block_size,
        config.num_gpu_blocks,
        config.num_cpu_blocks,
        caching=config.enable_prefix_caching,
        evicts_in_queue_order=rules.v0_evicts_in_queue_order,
    )
