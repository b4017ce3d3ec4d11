"""SVG elements as text. Every attribute and every text is redacted and escaped here, whoever wrote it."""

from __future__ import annotations

from html import escape
from typing import Final

from transactional.model.drawing.formats import shown

Attribute = str | int | float | None

CHARACTER: Final = 6.6
"""The mean width of a character of the font in the diagrams, for what has to fit."""
BOLD: Final = 8.4
"""That of the names of components."""


def _written(value: str | int | float) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return escape(shown(value))


def element(tag: str, *content: str, **attributes: Attribute) -> str:
    """An element around others that this module has made. `class_` is `class`, `stroke_width` is `stroke-width`."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_written(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    inner = "".join(content)
    return f"<{tag}{written}>{inner}</{tag}>" if inner else f"<{tag}{written}/>"


def text(words: str, x: float, y: float, **attributes: Attribute) -> str:
    """A line of text at its baseline."""
    return element("text", escape(shown(words)), x=x, y=y, **attributes)


def title(words: str) -> str:
    """What is shown when the pointer rests on an element, and read aloud in its place."""
    return element("title", escape(shown(words)))


def picture(width: float, height: float, label: str, *content: str, class_: str | None = None, style: str = "") -> str:
    """A whole SVG that scales with the page; with a `style` it needs none. Contains links, so it is a group to readers
    of screens, not an image."""
    return element(
        "svg",
        *([element("style", style)] if style else []),
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=round(width),
        height=round(height),
        role="group",
        aria_label=label,
        class_=class_,
    )


def width_of(words: str, character: float = CHARACTER) -> float:
    """About how wide a text is."""
    return len(words) * character


def shortened(words: str, width: float, character: float = CHARACTER) -> str:
    """As much of a text as fits, with an ellipsis."""
    most = max(3, int(width / character))
    return words if len(words) <= most else words[: most - 1] + "…"


def wrapped(words: str, width: float, lines: int, character: float = CHARACTER) -> list[str]:
    """A text in lines that fit, broken after a separator if there is one in the second half of a line; what does not
    fit into so many lines is left out."""
    most = max(3, int(width / character))
    found = list[str]()
    while len(words) > most and len(found) < lines - 1:
        at = max(words.rfind(each, most // 2, most) for each in "-_. /") + 1 or most
        found.append(words[:at].rstrip())
        words = words[at:]
    return [*found, shortened(words, width, character)]
