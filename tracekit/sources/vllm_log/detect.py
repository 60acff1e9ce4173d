"""Tell a vLLM log by its content."""

import re
from typing import Final

from tracekit.sources.observation import Material
from tracekit.sources.vllm_log.lines import split_lines
from tracekit.sources.vllm_log.records import HEAD, split_records

_MARKS: Final = re.compile(
    rb'\d\d-\d\d \d\d:\d\d:\d\d|throughput: [\d.]+ tokens/s|KV cache usage: |"POST /v1/|"name": ?"vllm\.'
)
_PYTHON: Final = re.compile(r"\.py:\d+\]|vllm\.[\w.]+:\d+\]")
_PERIODIC: Final = re.compile(r"^[^'\"]*throughput: [\d.]+\s(?:tokens/s)?.*$|^[^'\"]*KV cache usage: [\d.]+%")
_ACCESS: Final = re.compile(r'^[^\'"]*?INFO: +[^ \'"]* ?- "(?:POST|GET) /(?:v1/|metrics|health|generate)')
_LOOK: Final = 1 << 18


def detects(material: Material) -> bool:
    """Whether some line is a record with a Python file's name, a statistics line, or an access to vLLM's API."""
    head = material.head[:_LOOK]
    if b"\x00" in head[:4096] or not _MARKS.search(head):
        return False
    for line in split_lines(head).text.to_list():
        if _ACCESS.match(line):
            return True
        if re.search(HEAD, line) and any(_PYTHON.search(f"{record.place}]") for record in split_records(line)):
            return True
        if "throughput: " in line and "tokens/s" in line and _PERIODIC.match(line) and not line.startswith(("{", "[")):
            return True
    return False
