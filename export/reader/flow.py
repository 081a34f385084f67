"""How blocks follow each other on a page: edges, an opening, one or two columns. Knows no truth format."""

from __future__ import annotations

import numpy as np

from export.reader import draw as drawing
from export.reader import words
from export.reader.blocks import Block, Drawer


class Flow:
    """Arranges blocks from top to bottom."""

    def __init__(self, random: np.random.Generator, drawer: Drawer) -> None:
        self.random, self.drawer = random, drawer
        self.size = drawer.face.size_px
        self.width, self.height = drawer.canvas.size
        self.left = self.width * float(random.uniform(0.06, 0.13))
        self.right = self.width - self.width * float(random.uniform(0.06, 0.13))
        self.top = self.height * float(random.uniform(0.06, 0.1))
        self.bottom = self.height * float(random.uniform(0.88, 0.93))
        self.density = float(random.uniform(0.35, 1.0)) if random.random() < 0.4 else 1.0

    def _chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def _words(self, low: int, high: int) -> list[str]:
        return words.words(self.random, int(self.random.integers(low, high)))

    def fill(self) -> list[Block]:
        """Fill the page; gives the blocks in reading order."""
        head, foot = self._paper_edges()
        y = self.top
        body: list[Block] = []
        if self._chance(0.4):
            y, body = self._opening(y)
        if self._chance(0.4):
            gutter = self.width * float(self.random.uniform(0.025, 0.05))
            middle = (self.left + self.right) / 2
            columns = [(self.left, middle - gutter / 2), (middle + gutter / 2, self.right)]
        else:
            columns = [(self.left, self.right)]
        for left, right in columns:
            body += self._column(left, right, y)
        return [*head, *body, *foot]

    def _paper_edges(self) -> tuple[list[Block], list[Block]]:
        """Header, footer and page number; a number in the header line is read after the header."""
        head: list[Block] = []
        foot: list[Block] = []
        small = self.size * float(self.random.uniform(0.75, 1.0))
        room = self.right - self.left
        y_head, y_foot = self.height * 0.03, self.bottom + (self.height - self.bottom) * 0.35
        number = [f"{int(10 ** self.random.uniform(0, 3))}"]
        if self._chance(0.15):
            number = [f"Page {number[0]} of {int(10 ** self.random.uniform(1, 3))}"]
        if self._chance(0.6):
            align = ("left", "centre", "left")[int(self.random.integers(3))]
            head.append(self._short("header", self._words(1, 8), y_head, small, align, room * 0.7, self.left))
        if self._chance(0.45):
            foot.append(self._short("footer", self._words(1, 8), y_foot, small, "left", room * 0.38, self.left))
        if self._chance(0.8):
            if head and head[0].box_px[2] < self.right - room * 0.2 and self._chance(0.25):
                head.append(self._short("page_number", number, y_head, small, "right", room, self.left))
            else:
                align = "right" if foot or self._chance(0.3) else "centre"
                foot.append(self._short("page_number", number, y_foot, small, align, room, self.left))
        return head, foot

    def _short(self, kind: str, text: list[str], y: float, size: float, align: str, width: float, x: float) -> Block:
        """One line at most: words that do not fit are left out."""
        path = self.drawer.face.path
        while len(text) > 1 and drawing.width_px(" ".join(text), path, round(size)) > width:
            text = text[:-1]
        return self.drawer.text(kind, text, x, y, width, size=size, align=align)

    def _opening(self, y: float) -> tuple[float, list[Block]]:
        """A document's title, perhaps with a line below it."""
        size = self.size * float(self.random.uniform(1.5, 2.4))
        align = "centre" if self._chance(0.6) else "left"
        room = self.right - self.left
        title = self.drawer.text(
            "title",
            self._title_words(2, 9),
            self.left,
            y,
            room,
            size=size,
            path=self.drawer.face.title_path,
            align=align,
        )
        y, blocks = title.box_px[3] + self.size * float(self.random.uniform(0.6, 1.6)), [title]
        if self._chance(0.5):
            blocks.append(self._short("text", self._words(2, 9), y, self.size, align, room, self.left))
            y = blocks[-1].box_px[3] + self.size * float(self.random.uniform(0.8, 2.0))
        return y, blocks

    def _title_words(self, low: int, high: int) -> list[str]:
        text = [word.rstrip(".,;:") or word for word in self._words(low, high)]
        if self._chance(0.3):
            text.insert(0, ".".join(str(int(n)) for n in self.random.integers(1, 9, int(self.random.integers(1, 4)))))
        return text

    def _column(self, left: float, right: float, y: float) -> list[Block]:
        limit = y + (self.bottom - y) * self.density
        blocks: list[Block] = []
        kinds = ("text", "title", "list", "table", "image", "equation", "turned")
        shares = np.array([0.5, 0.16, 0.08, 0.09, 0.07, 0.08, 0.02])
        last = ""
        for _ in range(40):
            kind = kinds[int(self.random.choice(len(kinds), p=shares))]
            if kind == last and kind != "text":
                continue
            room = limit - y
            if room < self.size * 2.2:
                break
            more = self._element(kind, left, right - left, y, room)
            if not more:
                if kind == "text":
                    break
                continue
            blocks += more
            last = kind
            y = max(block.box_px[3] for block in more) + self.size * float(self.random.uniform(0.6, 1.6))
        return blocks

    def _element(self, kind: str, x: float, width: float, y: float, room: float) -> list[Block]:
        pitch = self.drawer.face.leading * self.size
        n_lines = int((room - self.size) / pitch)
        if kind == "text":
            per_line = width / (self.size * 3.1)
            n_words = int(min(self.random.uniform(1.0, 7.5), n_lines) * per_line * 0.9)
            if n_words < 3:
                return []
            indent = self.size * 1.5 if self._chance(0.2) else 0.0
            text = words.words(self.random, n_words)
            n_needed = len(drawing.wrap(text, self.drawer.face.path, max(6, round(self.size)), width, indent))
            return [self.drawer.text("text", text, x, y, width, indent=indent)] if n_needed <= n_lines else []
        if kind == "title":
            size = self.size * float(self.random.uniform(1.0, 1.6))
            if room < size * 5:
                return []
            align = "centre" if self._chance(0.15) else "left"
            path = self.drawer.face.title_path
            return [self._short_title(self._title_words(1, 7), x, y, width, size, path, align)]
        if kind == "list":
            return self._list(x, y, width, room)
        return self._float(kind, x, y, width, room)

    def _short_title(
        self, text: list[str], x: float, y: float, width: float, size: float, path: str, align: str
    ) -> Block:
        while len(text) > 1 and drawing.width_px(" ".join(text), path, round(size)) > width:
            text = text[:-1]
        return self.drawer.text("title", text, x, y, width, size=size, path=path, align=align)

    def _list(self, x: float, y: float, width: float, room: float) -> list[Block]:
        """A container box and its items; only the items are read."""
        n_items = int(self.random.integers(2, 6))
        if room < n_items * 3 * self.size * self.drawer.face.leading:
            return []
        marks = ("•", "\N{EN DASH}", "{}.", "({})")[int(self.random.integers(4))]
        hang, items = self.size * float(self.random.uniform(0.8, 1.8)), []
        per_line = width / (self.size * 3.4)
        for index in range(n_items):
            text = self._words(2, max(3, int(per_line * 1.7)))
            item = self.drawer.text("text", [marks.format(index + 1), *text], x + hang, y, width - hang, hang=hang)
            items.append(item)
            y = item.box_px[3] + self.size * 0.15
        edges = np.array([item.box_px for item in items])
        box = (*edges[:, :2].min(axis=0).tolist(), *edges[:, 2:].max(axis=0).tolist())
        return [Block("list", box), *items]

    def _float(self, kind: str, x: float, y: float, width: float, room: float) -> list[Block]:
        """Tables and pictures with their captions, formulas, turned blocks."""
        random, drawer, size = self.random, self.drawer, self.size
        if kind == "equation":
            return [drawer.equation(x, y, width)] if room > 5 * size else []
        if kind == "turned":
            if room < 9 * size:
                return []
            block = drawer.turned(x, y, width, min(room * 0.8, float(random.uniform(8, 22)) * size))
            return [block] if block else []
        n_rows = int(random.integers(2, 9))
        wanted = n_rows * 2.2 * size if kind == "table" else float(random.uniform(5, 16)) * size
        if room < wanted + 5 * size:
            return []
        share = float(random.uniform(0.7, 1.0)) if width > 24 * size else 1.0
        inset = (width - width * share) / 2
        has_caption = self._chance(0.7)
        words_of = [("Table" if kind == "table" else "Figure"), f"{int(random.integers(1, 20))}:", *self._words(2, 10)]
        small = size * 0.9
        if kind == "table":
            before = [drawer.text("table_caption", words_of, x, y, width, size=small)] if has_caption else []
            if before:
                y = before[0].box_px[3] + 0.5 * size
            return [*before, drawer.table(x + inset, y, width * share, n_rows)]
        picture = drawer.picture(x + inset, y, width * share, wanted)
        y = picture.box_px[3] + 0.6 * size
        return [picture, *([drawer.text("image_caption", words_of, x, y, width, size=small)] if has_caption else [])]
