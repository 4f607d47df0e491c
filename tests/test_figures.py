"""The pictures show what they are given, whole and readable, and show it the same way each time."""

import functools
import io
import itertools
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")
import matplotlib.pyplot as plt

from lib import figures

TOKENS = ["the", "cat", "slept"]
WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.125, 0.375, 0.5]])
CAUSAL = np.tril(np.ones((3, 3), bool))
STEPS = [
    ("", {"X": (3, 4)}),
    ("× W_Q, W_K, W_V", {"Q": (3, 4), "K": (3, 4), "V": (3, 4)}),
    ("Q Kᵀ", {"scores": (3, 3)}, ("Q", "K")),
    ("÷ √4", {"scaled": (3, 3)}),
    ("−∞ where blocked", {"masked": (3, 3)}),
    ("softmax, row by row", {"weights": (3, 3)}),
    ("weights V", {"output": (3, 4)}, ("weights", "V")),
]

X = np.array([[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]])  # tens: the row; ones: the column
SPLIT = [{"x": X}, {"head 0": X[:, :2], "head 1": X[:, 2:]}]


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def softmax_of_noise(*shape):
    e = np.exp(np.random.default_rng(7).normal(size=shape) * 2)
    return e / e.sum(-1, keepdims=True)


def labels(n, stem="token"):
    return [f"{stem}{i}" for i in range(n)]


def every_picture():
    """One picture of each kind and awkward size, by name."""
    long = ["antidisestablishment", "internationalisation", "incomprehensibilities"]
    twelve = softmax_of_noise(12, 12)
    return {
        "1x1": lambda: figures.heatmap([[1.0]]),
        "3x3": lambda: figures.heatmap(WEIGHTS, TOKENS, TOKENS, "Each row sums to one", mask=CAUSAL),
        "scores": lambda: figures.heatmap(
            np.where(CAUSAL, -12.34, -np.inf), TOKENS, TOKENS, "Scores", vmin=None, vmax=None
        ),
        "1x12": lambda: figures.heatmap(twelve[:1], ["it"], labels(12), "One query"),
        "12x1": lambda: figures.heatmap(twelve[:, :1], labels(12), ["it"], "One key"),
        "12x12": lambda: figures.heatmap(twelve, labels(12), labels(12), "Twelve by twelve"),
        "12x12 positions": lambda: figures.heatmap(twelve, title="Twelve by twelve"),
        "40x40": lambda: figures.heatmap(softmax_of_noise(40, 40), title="Forty by forty"),
        "40x40 tokens": lambda: figures.heatmap(softmax_of_noise(40, 40), labels(40), labels(40), "Forty tokens"),
        "3x40": lambda: figures.heatmap(softmax_of_noise(3, 40), TOKENS, labels(40), "Three queries"),
        "40x3": lambda: figures.heatmap(softmax_of_noise(40, 3), labels(40), TOKENS, "Three keys"),
        "long labels": lambda: figures.heatmap(WEIGHTS, long, long, "Long labels stand whole"),
        "long title": lambda: figures.heatmap([[1.0]], title="A title that is a sentence and goes on for a while"),
        "two heads": lambda: figures.heatmaps([WEIGHTS, WEIGHTS], TOKENS, TOKENS, title="Two heads", mask=CAUSAL),
        "four heads": lambda: figures.heatmaps(softmax_of_noise(4, 8, 8), labels(8), labels(8), title="Four heads"),
        "three heads in a row": lambda: figures.heatmaps(softmax_of_noise(3, 3, 3), TOKENS, TOKENS, per_row=3),
        "large heads": lambda: figures.heatmaps(softmax_of_noise(2, 20, 20), title="Two large heads"),
        "long panel titles": lambda: figures.heatmaps(
            softmax_of_noise(2, 1, 1), titles=["softmax over the keys", "softmax over the queries"]
        ),
        "dots": lambda: figures.dots(
            CAUSAL, long, TOKENS, "Who does what", dot="does", row_name="who", column_name="what"
        ),
        "mask": lambda: figures.mask_picture(CAUSAL, TOKENS, TOKENS, "A query sees itself and what came before"),
        "two masks": lambda: figures.mask_pictures([CAUSAL, ~CAUSAL], TOKENS, TOKENS, ["past", "future"], "Two masks"),
        "four masks": lambda: figures.mask_pictures(np.ones((4, 2, 5), bool), title="Two queries stand at four places"),
        "mask 40x40": lambda: figures.mask_picture(np.tril(np.ones((40, 40), bool)), title="Causal"),
        "all blocked": lambda: figures.mask_picture(np.zeros((2, 2), bool)),
        "flow": lambda: figures.flow_of_shapes(STEPS, "From X to the output"),
        "flow with large shapes": lambda: figures.flow_of_shapes(
            [("", {"X": (2, 8, 128, 64)}), ("project", dict.fromkeys("QKV", (2, 8, 128, 64)))]
        ),
        "arrays": lambda: figures.arrays(SPLIT, TOKENS, "Each head keeps its columns", shade=lambda n: n % 10 // 2),
        "arrays with long names": lambda: figures.arrays([{"a name that is long": [[1.5]], "and another": [[-2.25]]}]),
        "head map": lambda: figures.head_map(
            {"multi-head": range(4), "grouped": [0, 0, 1, 1], "one key/value head for all of them": [0] * 4},
            "Neighbours share",
        ),
        "all heads": lambda: figures.all_heads(
            softmax_of_noise(6, 12, 16, 16), "All at a glance", accent=[(0, 0), (5, 11)]
        ),
        "one head": lambda: figures.all_heads(softmax_of_noise(1, 1, 2, 3)),
        "many small heads": lambda: figures.all_heads(softmax_of_noise(30, 40, 5, 5), "Forty heads in thirty layers"),
        "bars": lambda: figures.bars([0.5, 0.5, 0.0], TOKENS, "Half each", mask=[True, True, False], accent=0),
        "lines": lambda: figures.lines(
            [1, 4, 16],
            {"without the scale": [1.0, 4.0, 16.0], "with it": [1.0, 1.0, 1.0], "near it": [1.0, 1.1, 1.0]},
            "The variance grows",
            xlabel="d",
            ylabel="variance",
            xscale="log",
            yscale="log",
        ),
    }


@functools.cache
def picture(name):
    """The figure of one of them, drawn once for all tests that only look at it."""
    return figure_of(every_picture()[name]())


def figure_of(drawn):
    return drawn if isinstance(drawn, mpl.figure.Figure) else drawn.figure


def written(fig):
    """Every visible text of a figure with its box in pixels."""
    fig.canvas.draw()
    found = fig.findobj(lambda artist: isinstance(artist, mpl.text.Text) and artist.get_visible())
    found = [text for text in dict.fromkeys(found) if text.get_text().strip()]
    # Tick labels outside the axis' limits exist but aren't drawn.
    drawn = []
    for text in found:
        box = text.get_window_extent()
        if np.isfinite(box.bounds).all():
            drawn.append((text, box))
    return drawn


def drawn_tick_labels(ax):
    return {tick.label1 for axis in (ax.xaxis, ax.yaxis) for tick in axis.majorTicks} | {
        tick.label2 for axis in (ax.xaxis, ax.yaxis) for tick in axis.majorTicks
    }


def hatched(ax):
    """The cells (i, j) that are hatched."""
    corners = [patch.get_path().vertices[::5] for patch in ax.patches if patch.get_hatch()]
    return {(round(y + 0.5), round(x + 0.5)) for squares in corners for x, y in squares}


def png(fig, **options):
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("name", every_picture())
class TestEveryPicture:
    def test_no_text_is_cut_off_and_none_overlaps_another(self, name):
        fig = picture(name)
        texts = written(fig)
        width, height = fig.canvas.get_width_height()
        if name == "lines":  # its ticks are matplotlib's own, and some stand outside the limits
            ticks = drawn_tick_labels(fig.axes[0])
            texts = [(text, box) for text, box in texts if text not in ticks]
        for text, box in texts:
            inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
            assert inside, f"{text.get_text()!r} is cut off: {box} in {width} x {height}"
        for (one, a), (other, b) in itertools.combinations(texts, 2):
            across = min(a.x1, b.x1) - max(a.x0, b.x0)
            down = min(a.y1, b.y1) - max(a.y0, b.y0)
            assert min(across, down) < 1.0, f"{one.get_text()!r} overlaps {other.get_text()!r}"

    def test_it_is_at_most_seven_inches_wide_in_a_notebook_and_has_twelve_point_labels(self, name):
        fig = picture(name)
        assert fig.get_figwidth() <= 6.8
        assert fig.dpi == 100
        cells = {text for ax in fig.axes for text in ax.texts}
        for text, _ in written(fig):
            assert text.get_fontsize() == 12 or (text in cells and 9 <= text.get_fontsize() <= 12), text
            assert text.get_fontname() == "DejaVu Sans"

    def test_the_same_call_gives_the_same_bytes_whatever_the_reader_has_set(self, name):
        first = png(picture(name))
        settings = {"font.size": 20, "font.family": "monospace", "figure.dpi": 50, "axes.facecolor": "red"}
        with mpl.rc_context(settings):
            second = png(figure_of(every_picture()[name]()), dpi=100)
            assert mpl.rcParams["font.size"] == 20
        assert first == second

    def test_cropping_to_what_is_drawn_keeps_the_size(self, name):
        """Notebooks save with bbox_inches="tight"."""
        fig = picture(name)
        image = plt.imread(io.BytesIO(png(fig, bbox_inches="tight", pad_inches=0.1)))
        width, height = fig.canvas.get_width_height()
        # Older versions of matplotlib round 6.9999 down or up.
        assert np.abs(np.subtract((height + 20, width + 20), image.shape[:2])).max() <= 1
        assert image.shape[1] <= 700


class TestHeatmap:
    def test_values_labels_and_title(self):
        ax = figures.heatmap(WEIGHTS, TOKENS, ["a", "b", "c"], "Each row sums to one")
        assert [text.get_text() for text in ax.texts] == [f"{w:.2f}" for w in WEIGHTS.ravel()]
        assert [text.get_position() for text in ax.texts] == [(j, i) for i in range(3) for j in range(3)]
        assert [label.get_text() for label in ax.get_yticklabels()] == TOKENS
        assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b", "c"]
        assert (ax.get_ylabel(), ax.get_xlabel()) == ("queries", "keys")
        assert ax.figure.get_suptitle() == "Each row sums to one"

    def test_the_first_row_stands_above_and_the_first_column_on_the_left(self):
        ax = figures.heatmap(WEIGHTS)
        boxes = {text.get_position(): text.get_window_extent() for text in ax.texts}
        assert boxes[0, 0].y0 > boxes[0, 2].y0
        assert boxes[0, 0].x0 < boxes[2, 0].x0
        top, bottom = ax.get_yticklabels()[0].get_window_extent(), ax.get_yticklabels()[2].get_window_extent()
        assert top.y0 > bottom.y0

    def test_colours_are_cividis_from_zero_to_one(self):
        image = figures.heatmap(WEIGHTS).images[0]
        assert image.get_cmap().name == "cividis"
        assert image.get_clim() == (0.0, 1.0)
        assert (image.get_array() == WEIGHTS).all()

    def test_limits_can_come_from_the_values(self):
        image = figures.heatmap([[-2.0, 6.0], [-np.inf, 1.0]], vmin=None, vmax=None).images[0]
        assert image.get_clim() == (-2.0, 6.0)

    @pytest.mark.parametrize("value", [0.0, 3.5, -np.inf])
    def test_limits_of_a_constant(self, value):
        low, high = figures.heatmap([[value]], vmin=None, vmax=None).images[0].get_clim()
        assert low < high
        low, high = figures.heatmap([[value]], vmin=None, vmax=-9.0).images[0].get_clim()
        assert low < high

    def test_numbers_are_written_plainly(self):
        texts = figures.heatmap([[-0.001, -1.5, -np.inf, 0.999]], vmin=None).texts
        assert [text.get_text() for text in texts] == ["0.00", "−1.50", "−∞", "1.00"]
        assert [t.get_text() for t in figures.heatmap([[0.5, 0.26]], decimals=1).texts] == ["0.5", "0.3"]

    def test_values_are_readable_against_their_cell(self):
        ax = figures.heatmap(np.linspace(0, 1, 12)[None])
        for text, value in zip(ax.texts, np.linspace(0, 1, 12), strict=True):
            face = np.array(mpl.colormaps["cividis"](value)[:3])
            linear = np.where(face <= 0.04045, face / 12.92, ((face + 0.055) / 1.055) ** 2.4)
            behind = linear @ [0.2126, 0.7152, 0.0722]
            ink = {"black": 0.0, "white": 1.0}[text.get_color()]
            contrast = (max(ink, behind) + 0.05) / (min(ink, behind) + 0.05)
            assert contrast >= 4.5, (value, contrast)

    def test_values_stay_inside_their_cell(self):
        ax = figures.heatmap(softmax_of_noise(12, 12), labels(12), labels(12))
        cell = ax.get_window_extent().width / 12
        assert max(text.get_window_extent().width for text in ax.texts) < cell

    def test_values_are_printed_up_to_twelve_and_a_colour_bar_stands_in_for_more(self):
        assert len(figures.heatmap(np.zeros((12, 12))).texts) == 144
        for shape in [(13, 2), (2, 13), (40, 40)]:
            ax = figures.heatmap(np.zeros(shape))
            assert len(ax.texts) == 0
            assert len(ax.figure.axes) == 2
        assert len(figures.heatmap(np.zeros((2, 13)), values=True).texts) == 26
        assert len(figures.heatmap(np.zeros((2, 2)), values=False).texts) == 0

    def test_crowded_labels_are_thinned_out_evenly(self):
        ax = figures.heatmap(softmax_of_noise(40, 40))
        shown = [int(label.get_text()) for label in ax.get_xticklabels()]
        assert shown == list(range(0, 40, shown[1]))
        assert shown == ax.get_xticks().tolist()

    def test_a_masked_zero_looks_different_from_a_small_weight_without_colour(self):
        ax = figures.heatmap([[1.0, 0.0, 0.0]], mask=[[True, True, False]])
        assert hatched(ax) == {(0, 2)}
        assert "hatched: blocked" in [text.get_text() for text in ax.figure.texts]
        assert "hatched: blocked" not in [t.get_text() for t in figures.heatmap([[1.0]]).figure.texts]

    def test_hatching_is_drawn(self):
        def grey(mask):
            fig = figures.heatmap([[0.0]], mask=mask, values=False).figure
            image = plt.imread(io.BytesIO(png(fig)))
            box = fig.axes[0].get_window_extent()
            return image[-int(box.y1) + 5 : -int(box.y0) - 5, int(box.x0) + 5 : int(box.x1) - 5, 0]

        assert np.ptp(grey([[True]])) == 0.0
        assert np.ptp(grey([[False]])) > 0.2

    def test_weight_that_leaks_into_a_blocked_cell_keeps_its_colour(self):
        ax = figures.heatmap([[0.75, 0.25]], mask=[[True, False]])
        assert not np.ma.getmaskarray(ax.images[0].get_array()).any()
        assert hatched(ax) == {(0, 1)}
        ax = figures.heatmap([[1.0, 0.0]], mask=[[True, False]])
        assert np.ma.getmaskarray(ax.images[0].get_array()).tolist() == [[False, True]]

    def test_minus_infinity_is_blocked_without_being_told(self):
        ax = figures.heatmap([[0.5, -np.inf]], mask=[[False, True]])
        assert hatched(ax) == {(0, 0), (0, 1)}

    def test_masks_broadcast(self):
        ax = figures.heatmap(WEIGHTS, mask=[True, True, False])
        assert hatched(ax) == {(0, 2), (1, 2), (2, 2)}

    def test_it_draws_into_given_axes(self):
        fig, (one, two) = plt.subplots(1, 2, figsize=(6.8, 3))
        assert figures.heatmap(WEIGHTS, TOKENS, TOKENS, "Weights", ax=one) is one
        assert figures.mask_picture(CAUSAL, TOKENS, TOKENS, "Mask", ax=two) is two
        assert one.get_title(loc="left") == "Weights"
        assert fig.axes == [one, two]
        assert len(one.texts) == 9

    def test_tokens_may_hold_anything(self):
        ax = figures.heatmap([[1.0, 0.0, 0.0, 0.0]], keys=["$5 or $6", "\n", "你", "x" * 25])
        assert [t.get_text() for t in ax.get_xticklabels()] == ["$5 or $6", "↵", "□", "x" * 23 + "…"]
        ax.figure.canvas.draw()

    def test_long_labels_are_whole(self):
        name = "internationalisation"
        ax = figures.heatmap([[1.0]], [name], [name])
        assert [label.get_text() for label in ax.get_xticklabels() + ax.get_yticklabels()] == [name, name]

    def test_tensors(self):
        torch = pytest.importorskip("torch")
        for dtype in (torch.float32, torch.bfloat16):
            weights = torch.tensor([[0.5, 0.5]], dtype=dtype, requires_grad=True)
            ax = figures.heatmap(weights, mask=torch.tensor([[True, False]]))
            assert [text.get_text() for text in ax.texts] == ["0.50", "0.50"]

    def test_the_input_is_not_written_to(self):
        weights, mask = WEIGHTS.copy(), CAUSAL.copy()
        figures.heatmap(weights, mask=mask)
        assert (weights == WEIGHTS).all()
        assert (mask == CAUSAL).all()


class TestHeatmaps:
    def test_panels_stand_side_by_side_and_share_their_labels(self):
        fig = figures.heatmaps([WEIGHTS, WEIGHTS.T], TOKENS, TOKENS, ["one", "other"], "Two heads")
        left, right = fig.axes
        assert left.get_position().y0 == right.get_position().y0
        assert left.get_position().x1 < right.get_position().x0
        assert [label.get_text() for label in left.get_yticklabels()] == TOKENS
        assert [label.get_text() for label in right.get_yticklabels()] == ["", "", ""]
        assert [label.get_text() for label in right.get_xticklabels()] == TOKENS
        assert [ax.get_title(loc="left") for ax in fig.axes] == ["one", "other"]
        assert [text.get_text() for text in right.texts] == [f"{w:.2f}" for w in WEIGHTS.T.ravel()]

    @pytest.mark.parametrize("per_row, across", [(None, 2), (1, 1), (2, 2), (3, 3), (4, 4)])
    def test_per_row(self, per_row, across):
        fig = figures.heatmaps(softmax_of_noise(5, 2, 2), per_row=per_row)
        assert len({ax.get_position().x0 for ax in fig.axes}) == across
        assert [ax.get_title(loc="left") for ax in fig.axes] == [f"head {n}" for n in range(5)]

    def test_panels_go_below_each_other_before_their_values_get_too_small(self):
        fig = figures.heatmaps(softmax_of_noise(2, 10, 10))
        assert len({ax.get_position().x0 for ax in fig.axes}) == 1

    def test_each_panel_may_have_its_own_mask(self):
        fig = figures.heatmaps([WEIGHTS, WEIGHTS], mask=np.stack([np.ones((3, 3), bool), CAUSAL]))
        assert [hatched(ax) for ax in fig.axes] == [set(), {(0, 1), (0, 2), (1, 2)}]

    def test_panels_share_their_colours(self):
        fig = figures.heatmaps([[[0.0]], [[8.0]]], vmin=None, vmax=None)
        assert [ax.images[0].get_clim() for ax in fig.axes] == [(0.0, 8.0)] * 2


class TestMaskPicture:
    def test_dots_where_allowed_and_hatching_where_blocked(self):
        ax = figures.mask_picture(CAUSAL, TOKENS, TOKENS, "Causal")
        dots = set(zip(*ax.lines[0].get_data(), strict=True))
        assert dots == {(j, i) for i in range(3) for j in range(3) if j <= i}
        assert hatched(ax) == {(i, j) for i in range(3) for j in range(3) if j > i}
        assert [text.get_text() for text in ax.figure.texts][-1] == "dot: may attend · hatched: blocked"
        assert [label.get_text() for label in ax.get_yticklabels()] == TOKENS

    def test_nothing_hatched_is_not_explained(self):
        ax = figures.mask_picture([[True]])
        assert "dot: may attend" in [text.get_text() for text in ax.figure.texts]


class TestDots:
    def test_dots_where_it_is_true_and_nothing_where_not(self):
        table = np.array([[True, False, True], [False, False, True]])
        ax = figures.dots(table, ["one", "two"], TOKENS, "Yes and no", dot="yes", row_name="who", column_name="what")
        assert set(zip(*ax.lines[0].get_data(), strict=True)) == {(0, 0), (2, 0), (2, 1)}
        assert hatched(ax) == set()
        assert (ax.get_ylabel(), ax.get_xlabel()) == ("who", "what")
        assert [label.get_text() for label in ax.get_yticklabels()] == ["one", "two"]
        assert [label.get_text() for label in ax.get_xticklabels()] == TOKENS
        texts = [text.get_text() for text in ax.figure.texts]
        assert texts[-1] == "dot: yes" and ax.figure.get_suptitle() == "Yes and no"

    def test_all_false_is_an_empty_table(self):
        assert len(figures.dots(np.zeros((2, 2), bool)).lines[0].get_xdata()) == 0


class TestMaskPictures:
    def test_each_panel_shows_its_own_mask(self):
        fig = figures.mask_pictures([CAUSAL, ~CAUSAL], TOKENS, TOKENS, ["past", "future"], "Two masks")
        past, future = fig.axes
        assert hatched(past) == {(i, j) for i in range(3) for j in range(3) if j > i}
        assert hatched(future) == {(i, j) for i in range(3) for j in range(3) if j <= i}
        assert [ax.get_title(loc="left") for ax in fig.axes] == ["past", "future"]
        assert [label.get_text() for label in past.get_yticklabels()] == TOKENS
        assert fig.get_suptitle() == "Two masks"
        assert [text.get_text() for text in fig.texts][-1] == "dot: may attend · hatched: blocked"

    def test_numbers_name_the_panels_and_per_row_places_them(self):
        fig = figures.mask_pictures(np.ones((3, 2, 2), bool), per_row=3)
        assert [ax.get_title(loc="left") for ax in fig.axes] == ["mask 0", "mask 1", "mask 2"]
        assert len({round(ax.get_position().y0, 6) for ax in fig.axes}) == 1


class TestFlowOfShapes:
    def boxes(self, ax):
        return {t.get_text().split()[0]: t.get_position() for t in ax.texts if "(" in t.get_text()}

    def test_names_shapes_and_operations(self):
        texts = [text.get_text() for text in figures.flow_of_shapes(STEPS).texts]
        assert texts == [
            *("X  (3, 4)", "Q  (3, 4)", "K  (3, 4)", "V  (3, 4)", "× W_Q, W_K, W_V"),
            *("scores  (3, 3)", "Q Kᵀ", "scaled  (3, 3)", "÷ √4", "masked  (3, 3)", "−∞ where blocked"),
            *("weights  (3, 3)", "softmax, row by row", "output  (3, 4)", "weights V"),
        ]

    def test_it_flows_downwards_and_fits_on_a_phone(self):
        ax = figures.flow_of_shapes(STEPS, "From X to the output")
        boxes = self.boxes(ax)
        order = [boxes[name][1] for name in ("X", "Q", "scores", "scaled", "masked", "weights", "output")]
        assert order == sorted(order)
        assert len(set(order)) == 7
        assert ax.yaxis_inverted()
        assert boxes["Q"][1] == boxes["K"][1] == boxes["V"][1]
        assert ax.figure.get_figwidth() <= 3.9

    def test_shapes_are_read_from_the_arrays(self):
        torch = pytest.importorskip("torch")
        ax = figures.flow_of_shapes([("", {"X": np.zeros((2, 5))}), ("sum", {"s": torch.zeros(2), "n": ("B", "L")})])
        assert [t.get_text() for t in ax.texts] == ["X  (2, 5)", "s  (2,)", "n  (B, L)", "sum"]

    def test_arrows_start_and_end_at_their_boxes(self):
        ax = figures.flow_of_shapes(STEPS)
        boxes = self.boxes(ax)
        starts = {(round(line.get_xdata()[0], 6), round(line.get_ydata()[0], 6)) for line in ax.lines}
        for name in ("X", "Q", "K", "V", "scores", "scaled", "masked", "weights"):
            x, y = boxes[name]
            assert any(abs(sx - x) < 1e-6 and 0 < sy - y < 0.2 for sx, sy in starts), name
        assert len(ax.lines) == 3 + 2 + 1 + 1 + 1 + 2

    def test_a_line_that_skips_rows_crosses_no_box_and_no_text(self):
        steps = [*STEPS, ("add", {"sum": (3, 4)}, ("output", "X")), ("again", {"end": (3, 4)}, ("sum", "X", "V"))]
        ax = figures.flow_of_shapes(steps)
        ax.figure.canvas.draw()
        obstacles = [text.get_window_extent() for text in ax.texts]
        downs = []
        for line in ax.lines:
            points = ax.transData.transform(np.column_stack(line.get_data()))
            if len(points) == 4 and points[2][1] - points[3][1] > 100:
                downs.append(points[2][0])
        assert len(downs) == 4
        assert len({round(x) for x in downs}) >= 3
        for x in downs:
            assert not any(box.x0 - 2 < x < box.x1 + 2 for box in obstacles if box.x0 > min(downs) - 40), x

    @pytest.mark.parametrize(
        "steps, error, text",
        [
            ([], ValueError, "steps: wanted at least one step, got none"),
            (["X"], TypeError, "steps: wanted (operation, {name: array or shape}, sources), got 'X' at 0"),
            ([("", {})], TypeError, "got ('', {}) at 0"),
            ([("", {"X": 3})], TypeError, "steps: wanted an array or a shape for 'X', got 3"),
            ([("", {"X": (1,)}), ("f", {"X": (1,)})], ValueError, "wanted each name once, got 'X' again at 1"),
            ([("", {"X": (1,)}), ("f", {"Y": (1,)}, ["Z"])], ValueError, "sources that stand above (X), got 'Z' at 1"),
            (
                [("", {"x" * 40 + n: (1,) for n in "ab"})],
                ValueError,
                "steps: wanted rows of at most 6.8 inches, got one of",
            ),
            ([("", {"X": (1,)}), ("m" * 60, {"Y": (1,)})], ValueError, "wanted a figure of at most 6.8 inches"),
        ],
    )
    def test_errors(self, steps, error, text):
        with pytest.raises(error) as raised:
            figures.flow_of_shapes(steps)
        assert text in str(raised.value)


class TestArrays:
    def test_numbers_stand_where_they_are_in_the_array(self):
        fig = figures.arrays(SPLIT, TOKENS)
        for ax, array in zip(fig.axes, (X, X[:, :2], X[:, 2:]), strict=True):
            shown = {text.get_position(): text.get_text() for text in ax.texts}
            assert shown == {(j, i): str(n) for (i, j), n in np.ndenumerate(array)}
            assert ax.yaxis_inverted()
        assert [ax.get_title(loc="left") for ax in fig.axes] == ["x", "head 0", "head 1"]

    def test_a_line_stands_below_the_one_before_and_only_its_first_array_names_the_rows(self):
        whole, left, right = figures.arrays(SPLIT, TOKENS).axes
        assert left.get_position().y0 == right.get_position().y0
        assert left.get_position().y1 < whole.get_position().y0
        assert left.get_position().x1 < right.get_position().x0
        assert [label.get_text() for label in left.get_yticklabels()] == TOKENS
        assert [label.get_text() for label in right.get_yticklabels()] == ["", "", ""]

    def test_the_same_number_has_the_same_shade_everywhere(self):
        fig = figures.arrays(SPLIT, TOKENS, shade=lambda n: n % 10 // 2)
        whole, left, right = (ax.images[0].get_array() for ax in fig.axes)
        assert whole.tolist() == [[0, 0, 1, 1]] * 3
        assert (left == 0).all()
        assert (right == 1).all()

    def test_numbers_are_readable_on_each_shade(self):
        ax = figures.arrays([{"x": [[0, 1, 2, 3]]}], shade=int).axes[0]
        assert [text.get_color() for text in ax.texts] == ["black", "white", "black", "white"]
        assert [mpl.colors.to_hex(face) for face in ax.images[0].to_rgba([0, 1, 2, 3])] == [
            *("#ffffff", figures.ACCENT, figures.PAPER, figures.GREY)
        ]

    def test_decimals(self):
        ax = figures.arrays([{"x": [[-0.25, 8.0]]}], decimals=1).axes[0]
        assert [text.get_text() for text in ax.texts] == ["−0.2", "8.0"]

    @pytest.mark.parametrize(
        "lines, options, text",
        [
            ([], {}, "lines: wanted at least one array in each line, got none"),
            ([{"x": X}, {}], {}, "lines: wanted at least one array in each line, got none"),
            ([{"x": X, "y": X[:2]}], {}, "lines: wanted arrays with equally many rows, got 2, 3"),
            ([{"x": X[0]}], {}, "x: wanted rows and columns, neither empty, got shape (4,)"),
            ([{"x": X}], {"rows": ["a"]}, "rows: wanted 3, one per row, got 1"),
            ([{"x": [[4]]}], {"shade": int}, "shade: wanted 0, 1, 2 or 3 for each number, got [[4]]"),
        ],
    )
    def test_errors(self, lines, options, text):
        with pytest.raises(ValueError) as error:
            figures.arrays(lines, **options)
        assert text in str(error.value)


class TestHeadMap:
    def test_each_arrow_runs_from_a_query_head_to_the_one_it_reads(self):
        for heads in ([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0], [0, 1, 2, 3], [2, 0]):
            ax = figures.head_map({"map": heads}).axes[0]
            spots = {text.get_text(): text.get_position() for text in ax.texts}
            arrows = [patch._posA_posB for patch in ax.patches if isinstance(patch, mpl.patches.FancyArrowPatch)]
            assert len(arrows) == len(heads)
            for h, (g, (start, end)) in enumerate(zip(heads, arrows, strict=True)):
                assert start[0] == pytest.approx(spots[f"q{h}"][0])
                assert end[0] == pytest.approx(spots[f"kv{g}"][0])
                assert spots[f"q{h}"][1] < start[1] < end[1] < spots[f"kv{g}"][1]

    def test_there_are_as_many_key_value_heads_as_the_largest_says(self):
        texts = [text.get_text() for text in figures.head_map({"map": [2, 0]}).axes[0].texts]
        assert texts == ["q0", "q1", "kv0", "kv1", "kv2"]

    def test_maps_stand_below_each_other(self):
        one, two = figures.head_map({"one": [0], "two": [0, 0]}).axes
        assert two.get_position().y1 < one.get_position().y0
        assert [ax.get_title(loc="left") for ax in (one, two)] == ["one", "two"]

    @pytest.mark.parametrize("heads", [[], [0.0], [-1], [[0]]])
    def test_heads_that_are_none(self, heads):
        with pytest.raises(ValueError, match="maps\\['map'\\]: wanted one integer ≥ 0 per query head, got"):
            figures.head_map({"map": heads})

    @pytest.mark.parametrize("maps", [{}, [0, 0]])
    def test_no_maps(self, maps):
        with pytest.raises(TypeError, match="maps: wanted a dict of names and key/value heads, got"):
            figures.head_map(maps)


class TestAllHeads:
    def test_each_map_stands_in_the_row_of_its_layer_and_the_column_of_its_head(self):
        weights = softmax_of_noise(2, 3, 4, 5)
        ax = figures.all_heads(weights, "Two layers")
        drawn = ax.images[0].get_array()
        for layer, head in itertools.product(range(2), range(3)):
            tile = drawn[5 * layer : 5 * layer + 4, 6 * head : 6 * head + 5]
            np.testing.assert_array_equal(tile.filled(-1), weights[layer, head])
        assert drawn.mask.sum() == 9 * 17 - weights.size, "white between the maps, and nowhere else"
        assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "1", "2"]
        assert [*ax.get_xticks()] == [2, 8, 14]
        assert [*ax.get_yticks()] == [1.5, 6.5]
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")
        assert ax.images[0].get_clim() == (0.0, 1.0)

    def test_a_cell_is_a_whole_number_of_pixels(self):
        ax = figures.all_heads(softmax_of_noise(6, 12, 16, 16))
        box, shape = ax.get_window_extent(), ax.images[0].get_array().shape
        np.testing.assert_allclose([box.width / shape[1], box.height / shape[0]], 3, rtol=1e-9)

    def test_the_accent_frames_a_map(self):
        ax = figures.all_heads(softmax_of_noise(2, 3, 4, 5), accent=[(1, 2)])
        (frame,) = ax.patches
        assert frame.get_bbox().bounds == (11, 4, 6, 5)
        assert mpl.colors.to_hex(frame.get_edgecolor()) == figures.ACCENT

    @pytest.mark.parametrize(
        "weights, accent, text",
        [
            (WEIGHTS, (), "weights: wanted finite (layers, heads, L, S), none of them 0, got shape (3, 3)"),
            (np.zeros((2, 0, 3, 3)), (), "none of them 0, got shape (2, 0, 3, 3)"),
            (np.full((1, 1, 2, 2), -np.inf), (), "wanted finite"),
            (np.zeros((1, 9, 2, 99)), (), "columns with the gaps between, got 899"),
            (np.zeros((2, 3, 4, 4)), [(2, 0)], "accent: wanted (layer, head) below (2, 3), got (2, 0)"),
            (np.zeros((2, 3, 4, 4)), [(0, 1, 1)], "accent: wanted (layer, head) below (2, 3), got (0, 1, 1)"),
        ],
    )
    def test_errors(self, weights, accent, text):
        with pytest.raises(ValueError) as raised:
            figures.all_heads(weights, accent=accent)
        assert text in str(raised.value)
        assert plt.get_fignums() == []


class TestBars:
    def test_lengths_values_and_labels(self):
        ax = figures.bars([0.5, 0.25, 0.0], TOKENS, "Half on the first", mask=[True, True, False], accent=1)
        assert [bar.get_width() for bar in ax.patches] == [0.5, 0.25, 0.0]
        assert [text.get_text() for text in ax.texts] == ["0.50", "0.25", "0.00 blocked"]
        assert [label.get_text() for label in ax.get_yticklabels()] == TOKENS
        colours = [mpl.colors.to_hex(bar.get_facecolor()) for bar in ax.patches]
        assert colours == [figures.GREY, figures.ACCENT, figures.GREY]
        assert ax.yaxis_inverted()

    def test_full_length_can_come_from_the_values(self):
        short, full = figures.bars([0.5]).get_xlim()[1], figures.bars([0.5], vmax=None).get_xlim()[1]
        assert short == pytest.approx(2 * full)
        assert figures.bars([0.0], vmax=None).get_xlim()[1] > 0


class TestLines:
    def test_every_line_has_its_own_marker_dashes_and_name(self):
        series = {f"line {n}": [1.0, 2.0 + n] for n in range(6)}
        ax = figures.lines([0, 1], series, xlabel="d", ylabel="variance")
        assert len({line.get_marker() for line in ax.lines}) == 6
        assert len({str(line._unscaled_dash_pattern) for line in ax.lines}) == 6
        assert [text.get_text() for text in ax.texts] == list(series)
        assert ax.get_legend() is None
        assert ax.lines[0].get_color() == figures.ACCENT
        assert {line.get_color() for line in ax.lines[1:]} == {figures.GREY}

    def test_names_stand_in_the_order_of_the_ends_and_apart(self):
        ax = figures.lines([0, 1], {"a": [0, 1.0], "b": [0, 1.0], "c": [0, 0.99], "d": [0.0, 0.0]})
        boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
        heights = [boxes[name].y0 for name in "dcab"]
        assert heights == sorted(heights)
        assert all(b - a > 15 for a, b in itertools.pairwise(heights))


@pytest.mark.parametrize(
    "call, error, text",
    [
        (
            lambda: figures.heatmap(np.zeros(3)),
            ValueError,
            "weights: wanted two axes (queries, keys), neither empty, got shape (3,)",
        ),
        (
            lambda: figures.heatmap(np.zeros((2, 3, 3))),
            ValueError,
            "got shape (2, 3, 3); draw one head, weights[0], or all with heatmaps",
        ),
        (lambda: figures.heatmap(np.zeros((0, 3))), ValueError, "neither empty, got shape (0, 3)"),
        (
            lambda: figures.heatmap([[0.0, 1.0], [np.nan, 0.0]]),
            ValueError,
            "weights: wanted finite numbers, got NaN at [1, 0] (1 in all)",
        ),
        (lambda: figures.heatmap([[np.inf]]), ValueError, "weights: wanted finite numbers, got +inf at [0, 0]"),
        (lambda: figures.heatmap([["a"]]), TypeError, "weights: wanted real numbers, got dtype <U1"),
        (lambda: figures.heatmap([[1j]]), TypeError, "weights: wanted real numbers, got dtype complex128"),
        (lambda: figures.heatmap([[1.0], [1.0, 2.0]]), ValueError, "weights: wanted an array, got list"),
        (lambda: figures.heatmap(WEIGHTS, ["a"]), ValueError, "queries: wanted 3, one per row, got 1"),
        (lambda: figures.heatmap(WEIGHTS, TOKENS, ["a"] * 4), ValueError, "keys: wanted 3, one per column, got 4"),
        (
            lambda: figures.heatmap(WEIGHTS, "cat"),
            TypeError,
            "queries: wanted a sequence of labels, got the one text 'cat'",
        ),
        (
            lambda: figures.heatmap(WEIGHTS, mask=np.ones((3, 3))),
            TypeError,
            "mask: wanted booleans (True = may attend), got dtype float64",
        ),
        (
            lambda: figures.heatmap(WEIGHTS, mask=np.ones((2, 3), bool)),
            ValueError,
            "mask: wanted a shape that broadcasts to (3, 3), got (2, 3)",
        ),
        (
            lambda: figures.heatmap(WEIGHTS, vmin=1.0, vmax=1.0),
            ValueError,
            "vmin, vmax: wanted vmin below vmax, got 1.0 and 1.0",
        ),
        (
            lambda: figures.heatmaps([[[1.0]]], titles=["m" * 60]),
            ValueError,
            "title, labels: wanted a figure of at most 6.8 inches",
        ),
        (lambda: figures.heatmaps([]), ValueError, "weights: wanted at least one matrix, as (N, L, S), got []"),
        (lambda: figures.heatmaps(1.0), ValueError, "weights: wanted at least one matrix, as (N, L, S), got 1.0"),
        (lambda: figures.heatmaps(WEIGHTS), ValueError, "weights[0]: wanted two axes"),
        (
            lambda: figures.heatmaps([WEIGHTS, WEIGHTS[:2]]),
            ValueError,
            "weights: wanted matrices of one shape, got (3, 3), (2, 3)",
        ),
        (lambda: figures.heatmaps([WEIGHTS], titles=["a", "b"]), ValueError, "titles: wanted 1, one per panel, got 2"),
        (lambda: figures.heatmaps([WEIGHTS], per_row=5), ValueError, "per_row: wanted 1, 2, 3 or 4, got 5"),
        (
            lambda: figures.heatmaps([WEIGHTS], mask=np.ones((2, 3, 3), bool)),
            ValueError,
            "mask: wanted one matrix, or one per panel (1), got shape (2, 3, 3)",
        ),
        (
            lambda: figures.heatmaps([WEIGHTS, [[np.nan] * 3] * 3]),
            ValueError,
            "weights[1]: wanted finite numbers, got NaN at [0, 0] (9 in all)",
        ),
        (
            lambda: figures.dots(np.ones((2, 2))),
            TypeError,
            "table: wanted booleans (rows, columns), neither empty, got float64 of",
        ),
        (lambda: figures.dots([True, False]), ValueError, "neither empty, got bool of shape (2,)"),
        (lambda: figures.dots([[True]], ["a", "b"]), ValueError, "rows: wanted 1, one per row, got 2"),
        (lambda: figures.dots([[True]], None, "a"), TypeError, "columns: wanted a sequence of labels"),
        (
            lambda: figures.mask_picture(np.ones((2, 2))),
            TypeError,
            "mask: wanted booleans (True = may attend), got dtype float64",
        ),
        (
            lambda: figures.mask_picture(np.ones(2, bool)),
            ValueError,
            "mask: wanted two axes (queries, keys), neither empty, got shape (2,)",
        ),
        (lambda: figures.mask_pictures([]), ValueError, "masks: wanted at least one matrix, as (N, L, S), got []"),
        (lambda: figures.mask_pictures([CAUSAL], per_row=5), ValueError, "per_row: wanted 1, 2, 3 or 4, got 5"),
        (
            lambda: figures.mask_pictures([CAUSAL], titles=["a", "b"]),
            ValueError,
            "titles: wanted 1, one per panel, got 2",
        ),
        (
            lambda: figures.mask_pictures([CAUSAL, WEIGHTS]),
            TypeError,
            "masks[1]: wanted booleans (True = may attend), got dtype float64",
        ),
        (
            lambda: figures.mask_pictures(CAUSAL),
            ValueError,
            "masks[0]: wanted two axes (queries, keys), neither empty, got shape (3,)",
        ),
        (
            lambda: figures.mask_pictures([CAUSAL, CAUSAL[:2]]),
            ValueError,
            "masks: wanted one shape, got (3, 3), (2, 3)",
        ),
        (
            lambda: figures.bars(WEIGHTS),
            ValueError,
            "weights: wanted one axis (keys) that is not empty, got shape (3, 3)",
        ),
        (lambda: figures.bars([]), ValueError, "weights: wanted one axis (keys) that is not empty, got shape (0,)"),
        (
            lambda: figures.bars([0.5, -0.5]),
            ValueError,
            "weights: wanted finite numbers, none below 0, got -0.5 to 0.5",
        ),
        (lambda: figures.bars([0.5], mask=[True, False]), ValueError, "mask: wanted shape (1,), got (2,)"),
        (lambda: figures.bars([0.5], ["a", "b"]), ValueError, "keys: wanted 1, one per bar, got 2"),
        (lambda: figures.lines([1], {}), ValueError, "series: wanted a dict of 1 to 6 names and arrays, got 0"),
        (lambda: figures.lines([1], [1]), ValueError, "series: wanted a dict of 1 to 6 names and arrays, got list"),
        (
            lambda: figures.lines([1, 2], {"a": [1]}),
            ValueError,
            "series['a']: wanted shape (2,), as x has, got shape (1,)",
        ),
        (
            lambda: figures.lines([[1]], {"a": [1]}),
            ValueError,
            "x: wanted one axis that is not empty, got shape (1, 1)",
        ),
        (
            lambda: figures.lines([0, 1], {"a": [1, 2]}, xscale="log"),
            ValueError,
            "x: wanted positive numbers for a logarithmic axis, got 0.0 to 1.0",
        ),
        (
            lambda: figures.lines([0], {"a": [-np.inf]}),
            ValueError,
            "series['a']: wanted finite numbers, got -inf to -inf",
        ),
        (
            lambda: figures.lines([0], {"a": [1]}, yscale="cubic"),
            ValueError,
            "yscale: wanted 'linear' or 'log', got 'cubic'",
        ),
        (lambda: figures.alt_text(np.zeros(3)), ValueError, "weights: wanted two axes"),
    ],
)
def test_errors_name_the_argument_what_was_wanted_and_what_came(call, error, text):
    with pytest.raises(error) as raised:
        call()
    assert text in str(raised.value)
    assert plt.get_fignums() == []  # nothing half-drawn is left for the next plt.show()


def test_alt_text_says_the_size_and_where_the_weight_is():
    assert figures.alt_text(WEIGHTS, TOKENS, TOKENS) == (
        "Heatmap of weights, 3 queries by 3 keys. "
        "the: most on the, 1.00; cat: most on cat, 0.75; slept: most on slept, 0.50."
    )
    assert figures.alt_text([[0.5, 0.5]]) == "Heatmap of weights, 1 query by 2 keys. 0: 0.50 on each of 0, 1."


def test_it_loads_neither_torch_nor_the_fast_room():
    code = "import sys, lib.figures; assert not {'torch', 'lib.fast', 'lib.reference'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
