"""Names of models as people and logs write them: what of a name tells a model apart, and what says how it is stored."""

import re
from collections.abc import Iterator
from typing import Final, TypeAlias

Key: TypeAlias = tuple[str, ...]
"""Runs of letters and of digits: ``Qwen2.5-1.5B`` -> qwen 2 5 1 5 b, whichever separators stand between."""

_BITS: Final = (
    (re.compile(r"nvfp4|(?<!mx)fp4"), 4.5),
    (re.compile(r"bnb|nf4"), 4.5),
    (re.compile(r"mxfp4|w4a16|w4a8|int4|awq|gptq|4bit|[-_.]i?q4_"), 4.25),
    (re.compile(r"fp8|int8|w8a8|w8a16|8bit|[-_.]q8_"), 8.0),
    (re.compile(r"bf16|fp16"), 16.0),
)
"""Bits a weight, scales included, by what a name says; the first that matches counts."""
_FLAGS: Final = {
    "fp8": 8.0, "fbgemm_fp8": 8.0, "ptpc_fp8": 8.0, "modelopt": 8.0, "int8": 8.0, "experts_int8": 8.0, "awq": 4.25,
    "awq_marlin": 4.25, "gptq": 4.25, "gptq_marlin": 4.25, "mxfp4": 4.25, "gpt_oss_mxfp4": 4.25, "modelopt_fp4": 4.5,
    "nvfp4": 4.5, "bitsandbytes": 4.5,
}  # fmt: skip
"""Bits by vLLM's ``quantization``; methods that are missing here are of several widths."""

_CACHE_FOLDER: Final = re.compile(r"(?:^|/)models--[^/]+?--([^/]+)")
_KAGGLE: Final = re.compile(r"(?:^|/)([^/]+)/(?:transformers|pytorch|vllm)/([^/]+)(?:/\d+)?$", re.IGNORECASE)
_FILE_FORMAT: Final = re.compile(r"([-_.]i?q\d_[a-z0-9_]+)?([-_.](gguf|safetensors))*$")
_SPLIT: Final = re.compile(r"[-_ :]+|\.(?=[a-z])")
_RUN: Final = re.compile(r"[a-z]+|\d+")
_SIZE: Final = re.compile(r"(\d+x)?\d+([._]\d+)?[bm]")
_MAKERS: Final = frozenset({"meta", "nvidia", "unsloth", "hf", "mistralai", "ibm", "ai21", "redhatai"})
_STORED: Final = re.compile(
    r"awq|gptq|fp8|fp4|nvfp4|mxfp4|int4|int8|w4a16|w8a8|w8a16|bf16|fp16|bnb|nf4|[48]bit|dynamic|static|pertensor|"
    r"per|tensor|block|quantized|gguf|marlin|g128|g64|qat|gs128"
)
_TUNED: Final = re.compile(r"instruct|chat|base|it|pt|hf|thinking|preview|dpo|sft|rl|latest")
_DATE: Final = re.compile(r"\d{4}")
_EDITION: Final = re.compile(r"v\d+([._]\d+)?|coder|math")
_NOT_THE_MODEL: Final = re.compile(
    r"eagle\d*|medusa|draft\w*|speculator|mtp|lora|adapter|embed\w*|rerank\w*|reward|guard|vl|omni"
)


def last_name(name: str) -> str:
    """The part of a repository, a path, a Hugging Face cache folder or a Kaggle path that names the model; lower case."""
    path = name.rstrip("/")
    cached, kaggle = _CACHE_FOLDER.search(path), _KAGGLE.search(path)
    if cached:
        return cached[1].lower()
    if kaggle:
        return f"{kaggle[1]}-{kaggle[2]}".lower()
    return path.rsplit("/", 1)[-1].lower()


def key_of(name: str) -> Key:
    """What a name is compared by, nothing left out but its publisher."""
    return tuple(_RUN.findall(last_name(name)))


def reduced(name: str) -> Iterator[Key]:
    """Keys of a name, each with less of what does not change a model's shape: its maker, storage, tuning, date, edition.

    A word is only left out behind the first, and an edition only behind the size: the 3 of DeepSeek-V3 is its name.
    """
    words = _words(name)
    size = next((place for place, word in enumerate(words) if _SIZE.fullmatch(word)), len(words))
    yield key_of(name)
    yield _joined(words)
    kept = list(enumerate(words))
    for needless in (_STORED, _TUNED, _DATE):
        kept = [(place, word) for place, word in kept if not place or not needless.fullmatch(word)]
        yield _joined([word for _, word in kept])
    yield _joined([word for place, word in kept if not _EDITION.fullmatch(word) or (word[0] == "v" and place < size)])


def beginning(name: str) -> Iterator[Key]:
    """Keys of the first words of a name, longest first, that hold a size: ``Llama-3.1-8B-ours`` -> Llama-3.1-8B.

    None for what is not the model itself (drafts, adapters, embeddings).
    """
    words = [word for place, word in enumerate(_words(name)) if not place or not _TUNED.fullmatch(word)]
    if any(_NOT_THE_MODEL.fullmatch(word) for word in words):
        return
    sizes = [place for place, word in enumerate(words) if _SIZE.fullmatch(word)]
    for count in range(len(words) - 1, min(sizes, default=len(words)), -1):
        yield _joined(words[:count])


def bits_of(name: str, quantization: str | None) -> float | None:
    """Bits a weight by vLLM's flag, else by the name; None: neither says."""
    flag = _FLAGS.get((quantization or "").lower())
    if flag is not None:
        return flag
    last = last_name(name)
    return next((bits for pattern, bits in _BITS if pattern.search(last)), None)


def _words(name: str) -> list[str]:
    last = _FILE_FORMAT.sub("", last_name(name))
    words = [word for word in _SPLIT.split(last) if word]
    return words[1:] if len(words) > 1 and words[0] in _MAKERS else words


def _joined(words: list[str]) -> Key:
    return tuple(run for word in words for run in _RUN.findall(word))
