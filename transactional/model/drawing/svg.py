"""Writes SVG elements as text. Every attribute and every text must be redacted and escaped here."""

from __future__ import annotations

from html import escape
from typing import Final

from transactional.model.drawing.formats import redacted_text

Attribute = str | int | float | None

CHARACTER: Final = 6.6
"""The mean width of a character of the diagrams' font. The width of a text is estimated by it."""
BOLD: Final = 8.4
"""The mean width of a character in the names of components."""


def _to_attribute(attribute_value: str | int | float) -> str:
    if isinstance(attribute_value, float):
        return f"{attribute_value:.1f}".removesuffix(".0")
    return escape(redacted_text(attribute_value))


def element(tag: str, *content: str, **attributes: Attribute) -> str:
    """Return an element around elements of this module. `class_` is `class`, `stroke_width` is `stroke-width`."""
    attribute_text = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_to_attribute(attribute_value)}"'
        for name, attribute_value in attributes.items()
        if attribute_value is not None
    )
    inner_text = "".join(content)
    return f"<{tag}{attribute_text}>{inner_text}</{tag}>" if inner_text else f"<{tag}{attribute_text}/>"


def text(words: str, x: float, y: float, **attributes: Attribute) -> str:
    """Return a line of text, whose baseline begins at `x` and `y`."""
    return element("text", escape(redacted_text(words)), x=x, y=y, **attributes)


def title(words: str) -> str:
    """Return a title, which is shown when the pointer rests on its element, and is read aloud in its place."""
    return element("title", escape(redacted_text(words)))


def picture(width: float, height: float, label: str, *content: str, class_: str | None = None, style: str = "") -> str:
    """Return a whole SVG that scales with its page; with a `style` it needs no style sheet of a page.

    To screen readers it is a group, not an image, because it may contain links.
    """
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


def text_width(words: str, character: float = CHARACTER) -> float:
    """Return the estimated width of a text."""
    return len(words) * character


def shorten(words: str, width: float, character: float = CHARACTER) -> str:
    """Return the beginning of a text that fits, with an ellipsis if it was cut off."""
    characters_max = max(3, int(width / character))
    return words if len(words) <= characters_max else words[: characters_max - 1] + "…"


def wrap(words: str, width: float, lines: int, character: float = CHARACTER) -> list[str]:
    """Break a text into at most `lines` lines that fit, and cut off the remainder.

    A line is broken after a separator if there is one in its second half.
    """
    characters_max = max(3, int(width / character))
    lines_so_far = list[str]()
    while len(words) > characters_max and len(lines_so_far) < lines - 1:
        split_position = (
            max(words.rfind(separator, characters_max // 2, characters_max) for separator in "-_. /") + 1
            or characters_max
        )
        lines_so_far.append(words[:split_position].rstrip())
        words = words[split_position:]
    return [*lines_so_far, shorten(words, width, character)]
