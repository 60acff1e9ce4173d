"""A chart as a picture of its own: PNG or SVG."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tracekit.errors import InputError
from tracekit.report.charts import NAMES, Drawn

_WIDTH_PX: Final = 800
_PNG_SCALE: Final = 2.0
_CONFIG: Final = {"background": "white", "font": "sans-serif"}


def check_image(name: str, path: Path) -> None:
    """Raise ``InputError`` for a name that no chart has, or a file whose ending is not that of a picture."""
    if name not in NAMES:
        msg = f"no chart is named {name!r}; there are: {', '.join(NAMES)}"
        raise InputError(msg)
    if path.suffix.lower() not in {".png", ".svg"}:
        msg = f"{path}: expected a name that ends in .png or .svg"
        raise InputError(msg)


def image(drawn: Sequence[Drawn], name: str, path: Path) -> bytes:
    """The file's content; PNG in twice the resolution of a screen. Raises ``InputError`` if there is nothing to draw."""
    import vl_convert

    one = next((one for one in drawn if one.name == name), None)
    if one is None:
        msg = f"{path}: these runs know nothing to draw in {name}; they have: {', '.join(d.name for d in drawn) or 'no chart'}"
        raise InputError(msg)
    spec = json.dumps({**_sized(one.chart.to_dict()), "title": one.title})
    if path.suffix.lower() == ".svg":
        return str(vl_convert.vegalite_to_svg(spec, config=_CONFIG)).encode()
    return bytes(vl_convert.vegalite_to_png(spec, config=_CONFIG, scale=_PNG_SCALE))


def _sized(spec: dict[str, Any]) -> dict[str, Any]:
    """As wide as ``_WIDTH_PX`` where the page would fill its container."""
    sized = {**spec, "width": _WIDTH_PX} if spec.get("width") == "container" else spec
    return {**sized, "vconcat": [_sized(part) for part in sized["vconcat"]]} if "vconcat" in sized else sized
