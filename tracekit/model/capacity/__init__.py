"""How vLLM gets from layers and available bytes to KV blocks, tokens and the concurrency it prints, by version.

``plan`` is the way in. It mirrors ``vllm/v1/core/kv_cache_planning.py`` (0.33.0; before: ``kv_cache_utils.py``) and
``vllm/v1/kv_cache_interface.py``; differences between versions are data (``rules``).
"""

from tracekit.model.capacity.layers import LayerCache
from tracekit.model.capacity.plan import CapacityError, CapacityPlan, Server, plan
from tracekit.model.capacity.rules import CapacityRules, capacity_rules_for

__all__ = ["CapacityError", "CapacityPlan", "CapacityRules", "LayerCache", "Server", "capacity_rules_for", "plan"]
