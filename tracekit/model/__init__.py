"""A faithful model of vLLM's scheduler and KV cache in plain Python, in vLLM's own words.

Start at ``rules`` (what changed between versions), then ``scheduler`` (V1) or ``scheduler_v0``. Nothing is re-exported
here: import from the module that defines a name.
"""
