"""How vLLM's command line lets people write values: words it knows, and integers with a suffix.

Sources: ``CacheDType`` (``vllm/config/cache.py``), ``ModelDType`` (``vllm/config/model.py``), ``QuantizationMethods``
(``vllm/model_executor/layers/quantization/__init__.py``), those of all versions together, and ``human_readable_int``
(``vllm/engine/arg_utils.py``).
"""

import difflib
import re
from decimal import Decimal
from typing import Final

from tracekit.errors import ConfigError

_WORDS: Final = {
    "dtype": "auto half float16 bfloat16 float float32",
    "kv_cache_dtype": (
        "auto half float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla nvfp4_ds_mla turboquant_k8v4 "
        "turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc int4_per_token_head int8_per_token_head "
        "fp8_per_token_head nvfp4 nvfp4_4over6"
    ),
    "quantization": (
        "none aqlm auto-round auto-awq awq awq_marlin bitblas bitsandbytes compressed-tensors cpu_awq cpu_gptq "
        "deepgemm_fp8 deepspeedfp experts_int8 fbgemm_fp8 fp8 fp_quant gguf gpt_oss_mxfp4 gptq gptq_bitblas "
        "gptq_marlin gptq_marlin_24 hqq inc int8 ipex marlin modelopt modelopt_fp4 modelopt_mixed modelopt_mxfp8 "
        "moe_wna16 mxfp4 mxfp8 neuron_quant nvfp4 petit_nvfp4 ptpc_fp8 qqq quark rtn squeezellm torchao tpu_int8"
    ),
}
_MULTIPLIERS: Final = {
    **{letter: 1000**power for power, letter in enumerate("kmgt", 1)},
    **{letter: 1024**power for power, letter in enumerate("KMGT", 1)},
}
_READABLE: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")


def check_word(name: str, text: str, where: str) -> None:
    """Refuse a word that no version of vLLM takes for this setting; raises ``ConfigError`` with the nearest."""
    known = _WORDS.get(name, "").split()
    word = text.lower().removeprefix("torch.")
    if not known or word in known or word.replace("-", "_") in known:
        return
    near = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
    msg = f"{where}: vLLM knows no {name} {text[:40]!r}; {hint}"
    raise ConfigError(msg)


def readable_int(text: str) -> str:
    """An integer as vLLM's command line takes it, written out: ``32k`` is 32000, ``32K`` 32768, ``25.6k`` 25600."""
    found = _READABLE.fullmatch(text)
    return text if found is None else str(int(Decimal(found[1]) * _MULTIPLIERS[found[2]]))
