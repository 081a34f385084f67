"""What the generator draws: the same for the same seed, and a truth that upstream's own parsers read back."""

from __future__ import annotations

import numpy as np
import pytest
from mineru_vl_utils.post_process.otsl2html import convert_otsl_to_html
from PIL import Image, ImageDraw

from export.reader import crops, curriculum, draw, evaluate, fonts, formulas, metrics, pages, tables, words
from export.reader.examples import write_pages
from handler.upstream import Upstream


def _installed() -> bool:
    try:
        for family in fonts.FAMILIES:
            for style in fonts.STYLES:
                fonts.path_of(family, style)
        words.dictionary()
    except SystemExit:
        return False
    return True


needs_fonts = pytest.mark.skipif(not _installed(), reason="the fonts of the training are not installed")
CROPS = {
    "line": lambda random: crops.text_crop(random, 1, 12),
    "paragraph": lambda random: crops.text_crop(random, 4, 16),
    "table": lambda random: tables.table_crop(random, 5, 16),
    "formula": lambda random: formulas.formula_crop(random, 2, 12),
}


@needs_fonts
@pytest.mark.parametrize("kind", sorted(CROPS))
def test_crops_are_the_same_for_the_same_seed(kind):
    first, again = (CROPS[kind](np.random.default_rng(7)) for _ in range(2))
    other = CROPS[kind](np.random.default_rng(8))
    assert first.answer == again.answer
    assert np.array_equal(first.image, again.image)
    assert not np.array_equal(first.image, other.image)


@needs_fonts
@pytest.mark.parametrize("kind", sorted(CROPS))
def test_every_character_of_a_crop_has_a_place_in_it(kind):
    for seed in range(12):
        sample = CROPS[kind](np.random.default_rng(seed))
        height, width, _ = sample.image.shape
        assert sample.image.dtype == np.uint8
        assert height % 28 == width % 28 == 0
        assert sample.answer == sample.answer.strip() != ""
        assert len(sample.positions) == len(sample.answer)
        inside = (sample.positions > -6) & (sample.positions < np.array([width + 6, height + 6]))
        assert inside.all()


@needs_fonts
def test_ink_is_where_the_characters_are():
    random = np.random.default_rng(3)
    canvas = Image.new("L", (300, 40), 255)
    path = fonts.path_of("Liberation Sans", "regular")
    text, positions = draw.draw_line(ImageDraw.Draw(canvas), 5, 28, ["HHH", "HH"], path, 24, 0, 250.0)
    assert text == "HHH HH"
    ink = np.asarray(canvas)
    for character, (x, y) in zip(text, positions):
        near = ink[int(y) - 6 : int(y) + 6, int(x) - 6 : int(x) + 7].min()
        assert (near < 100) == (character != " "), random


@needs_fonts
def test_layout_answer_is_read_back_by_upstream():
    library = Upstream()
    for seed in range(8):
        page = pages.draw_page(np.random.default_rng(seed), 640)
        blocks, warnings = library.parse_layout_output(page.layout_answer())
        assert warnings == []
        assert [(block.type, block.angle) for block in blocks] == [(b.type, b.angle) for b in page.blocks]
        for block, box in zip(blocks, page.boxes()):
            assert block.bbox == [value / 1000 for value in box]


@needs_fonts
def test_layout_sample_points_into_the_layout_image():
    page = pages.draw_page(np.random.default_rng(0), 640)
    sample, maps = pages.layout_sample(page)
    assert sample.image.shape == (448, 448, 3)
    assert len(sample.positions) == len(sample.answer)
    assert maps.shape == (1024, 6)
    assert set(maps[:, 0].astype(int)) - {0} <= {1 + pages.TYPES.index(block.type) for block in page.blocks}


@needs_fonts
def test_blocks_of_a_page_lie_on_it_and_have_answers():
    for seed in range(8):
        page = pages.draw_page(np.random.default_rng([5, seed]), 700)
        assert page.blocks
        for block, (left, top, right, bottom) in zip(page.blocks, page.boxes()):
            assert 0 <= left < right <= 999
            assert 0 <= top < bottom <= 999
            assert (block.answer == "") == (block.type in ("image", "list"))
            assert block.angle == 0 or block.type == "text"


@needs_fonts
def test_turned_block_is_upright_after_the_turn_that_its_angle_says():
    """mineru-vl-utils turns a crop counter-clockwise by the block's angle before it is read."""
    for seed in range(400):
        page = pages.draw_page(np.random.default_rng([6, seed]), 640, noise=0.0)
        block = next((block for block in page.blocks if block.angle in (90, 270)), None)
        if block:
            break
    assert block is not None
    crop = Image.fromarray(page.image).crop(tuple(round(v) for v in block.box_px)).rotate(block.angle, expand=True)
    ink = np.asarray(crop.convert("L")) < 128
    # Lines of text leave empty rows between them, and hardly any empty columns.
    assert ink.any(axis=0).mean() > ink.any(axis=1).mean() or ink.shape[1] > ink.shape[0]


def test_otsl_of_a_grid_becomes_the_table_that_was_meant():
    grid = [["fcel", "lcel", "fcel"], ["ucel", "xcel", "ecel"], ["fcel", "fcel", "fcel"]]
    texts = iter("ABCDE")
    otsl = "".join(
        "".join(f"<{kind}>" + (next(texts) if kind == "fcel" else "") for kind in row) + "<nl>" for row in grid
    )
    assert convert_otsl_to_html(otsl) == (
        '<table><tr><td rowspan="2" colspan="2">A</td><td>B</td></tr><tr><td></td></tr>'
        "<tr><td>C</td><td>D</td><td>E</td></tr></table>"
    )
    assert tables.extent(grid, 0, 0) == (2, 2)


@needs_fonts
def test_drawn_tables_convert_to_html_with_every_cell():
    for seed in range(30):
        sample = tables.table_crop(np.random.default_rng(seed), 6, 20)
        html = convert_otsl_to_html(sample.answer)
        rows = sample.answer.split("<nl>")[:-1]
        assert len({row.count("cel>") for row in rows}) == 1
        assert html.count("<tr>") == len(rows)
        assert html.count("</td>") == sample.answer.count("<fcel>") + sample.answer.count("<ecel>")


@needs_fonts
def test_formulas_are_balanced():
    for seed in range(60):
        latex = formulas.formula_crop(np.random.default_rng(seed), 2, 14).answer
        assert latex.count("{") == latex.count("}")
        assert latex.count("(") == latex.count(")")
        assert "  " not in latex


@needs_fonts
@pytest.mark.parametrize("step", [0, 500, 1000, 1004, 3000, 5000])
def test_batches_follow_from_seed_and_step_alone(step):
    (kind, first, maps), (again_kind, again, _) = (
        curriculum.draw_batch(np.random.default_rng([0, step]), step) for _ in range(2)
    )
    assert kind == again_kind
    assert [sample.answer for sample in first] == [sample.answer for sample in again]
    assert len({sample.image.shape for sample in first}) == 1
    assert (maps is not None) == (kind == "layout")


def test_curriculum_ends_and_only_grows():
    untils = [stage.until_step for stage in curriculum.STAGES]
    assert untils == sorted(untils)
    for before, after in zip(curriculum.STAGES, curriculum.STAGES[1:]):
        assert (before.max_columns, before.max_rows) <= (after.max_columns, after.max_rows)


@needs_fonts
def test_truth_read_back_as_answers_has_no_errors():
    """The yardstick measures nothing when every answer is the truth."""
    library = Upstream()
    page = pages.draw_page(np.random.default_rng(4), 700)
    wanted = [(block.type, tuple(v / 1000 for v in box)) for block, box in zip(page.blocks, page.boxes())]
    pairs = metrics.block_matches(wanted, wanted)
    assert len(pairs) == len(wanted)
    assert metrics.in_order(pairs)
    assert evaluate.truth_markdown(library, page) == evaluate.truth_markdown(library, page) != ""


@needs_fonts
def test_example_pages_are_written_with_their_truth(tmp_path):
    write_pages(tmp_path, 2, 11, 640)
    names = [f"page-{number}.{ending}" for number in (1, 2) for ending in ("json", "md", "png")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_missing_fonts_name_the_packages(monkeypatch, tmp_path):
    monkeypatch.setenv("READER_FONTS", str(tmp_path))
    fonts._files.cache_clear()
    fonts.path_of.cache_clear()
    try:
        with pytest.raises(fonts.MissingFonts, match="apt-get install fonts-dejavu"):
            fonts.path_of("DejaVu Sans", "regular")
    finally:
        monkeypatch.undo()
        fonts._files.cache_clear()
        fonts.path_of.cache_clear()
