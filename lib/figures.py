"""The book's pictures: weights, masks, the flow of shapes, bars and lines, all with one look.

Rows are queries and columns are keys, always. Every picture can be read without its colours: values are printed in the
cells, blocked cells are hatched, and lines have markers and a name at their end.

A picture's size follows from its content alone, so the same call gives the same bytes. Each function returns what it
drew (the Axes, or the Figure where there may be several) and leaves ``plt.show()`` to you.

This is the only module of ``lib`` that imports matplotlib. It takes NumPy arrays, nested lists and torch tensors.
"""

import functools
import math
from dataclasses import dataclass

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, PathPatch, Rectangle
from matplotlib.path import Path

ACCENT = "#b5460f"  # the one accent colour
GREY = "#5f5f5f"  # the one grey, for what is not the point: axis names, arrows, the other lines
PAPER = "#e4e4e4"  # behind the hatching of a blocked cell
MAX_WIDTH = 6.8  # inches; a notebook adds 0.1 on each side, which makes 7
MAX_PRINTED = 12  # values are printed in the cells up to this many rows and columns

_SIZE = 12  # points: every label, value and title
_LINE = 0.22  # inches: one line of text
_PAD = 0.1  # inches: between neighbours
_GAP = 0.6  # inches: between the rows of a flow, room for an arrow with its operation
_STYLE = {"font.family": "DejaVu Sans", "font.size": _SIZE, "figure.facecolor": "white", "figure.dpi": 100}
_TITLE = {"fontsize": _SIZE, "fontweight": "bold"}
_DASHES = ["-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1))]
_MARKERS = ["o", "s", "^", "D", "v", "P"]


def _one_look(draw):
    """Draw under the book's settings, whatever the reader's own are, and put the reader's back."""

    @functools.wraps(draw)
    def wrapper(*args, **kwargs):
        with plt.style.context(["default", _STYLE]):
            return draw(*args, **kwargs)

    return wrapper


# ---- Weights and masks ----------------------------------------------------------------------------------------------


@_one_look
def heatmap(
    weights, queries=None, keys=None, title=None, *, mask=None, vmin=0.0, vmax=1.0, decimals=2, values=None, ax=None
):
    """Draw one weight matrix: a row per query, a column per key, the value printed in each cell.

    Parameters
    ----------
    weights : array (L, S)
        Finite numbers; −inf is allowed (a masked score) and printed as −∞.
    queries, keys : sequences of L and of S labels, optional
        Usually tokens. Without them the positions 0, 1, 2, … stand there. A label of more than 24 characters is
        shortened with an ellipsis.
    title : str, optional
        A sentence: what is to be seen.
    mask : boolean array that broadcasts to (L, S), optional
        True = may attend, as in ``attention``. Cells where it is False are hatched, so that a weight that is 0 because
        it is masked looks different from one that is merely small. −inf is hatched without being told.
    vmin, vmax : float or None
        The values at the two ends of the colours; None takes the smallest or the largest finite value.
    decimals : int
        How many decimals are printed.
    values : bool, optional
        Print the values or not. By default they are printed up to 12 × 12; a larger map gets a colour bar instead.
    ax : matplotlib Axes, optional
        Draw in here, at the size it has. By default a figure is made that fits.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError, ValueError
        For weights that are not two-dimensional or hold NaN or +inf, a mask that is not boolean, a wrong number of
        labels.

    Examples
    --------
    >>> ax = heatmap([[0.5, 0.5], [1.0, 0.0]], ["a", "b"], ["a", "b"], "Each row sums to one")
    >>> [text.get_text() for text in ax.texts]
    ['0.50', '0.50', '1.00', '0.00']
    """
    weights = _matrix("weights", weights)
    panel = _panel(weights, mask, _limits([weights], vmin, vmax), decimals, values)
    return _draw_one(panel, queries, keys, title, ax)


@_one_look
def heatmaps(
    weights,
    queries=None,
    keys=None,
    titles=None,
    title=None,
    *,
    mask=None,
    vmin=0.0,
    vmax=1.0,
    decimals=2,
    values=None,
    per_row=None,
):
    """Draw several weight matrices of the same tokens side by side: heads, layers, or right beside wrong.

    Parameters
    ----------
    weights : array (N, L, S), or sequence of N arrays (L, S)
        One matrix per panel.
    titles : sequence of N str, optional
        One short title per panel. Without them: "head 0", "head 1", ….
    title : str, optional
        A sentence above all of them.
    per_row : int, optional
        How many panels stand in one row, 1 to 4. By default two, or one where two would make the values too small
        to read.
    queries, keys, mask, vmin, vmax, decimals, values
        As for `heatmap`, shared by the panels. A mask of shape (N, L, S) gives each panel its own.

    Returns
    -------
    matplotlib Figure
        Its ``axes`` are the panels, in order.

    Raises
    ------
    TypeError, ValueError
        As for `heatmap`, and for matrices of different shapes or a `per_row` outside 1 to 4.

    Examples
    --------
    >>> fig = heatmaps([[[1.0, 0.0]], [[0.5, 0.5]]], ["it"], ["cat", "mat"])
    >>> [ax.get_title(loc="left") for ax in fig.axes]
    ['head 0', 'head 1']
    """
    count = _count("weights", weights, per_row)
    titles = [f"head {n}" for n in range(count)] if titles is None else _labels("titles", titles, count, "panel")
    masks = [mask] * count
    if mask is not None and _boolean(mask).ndim == 3:
        masks = _boolean(mask)
        if len(masks) != count:
            raise ValueError(f"mask: wanted one matrix, or one per panel ({count}), got shape {masks.shape}")
    weights = [_matrix(f"weights[{n}]", weights[n]) for n in range(count)]
    if len({matrix.shape for matrix in weights}) > 1:
        raise ValueError(f"weights: wanted matrices of one shape, got {', '.join(str(w.shape) for w in weights)}")
    limits = _limits(weights, vmin, vmax)
    panels = [_panel(weights[n], masks[n], limits, decimals, values) for n in range(count)]
    return _draw_all(panels, queries, keys, titles, title, per_row)


@_one_look
def mask_picture(mask, queries=None, keys=None, title=None, *, ax=None):
    """Draw who may attend to whom: a dot where a query may attend to a key, hatching where it may not.

    Parameters
    ----------
    mask : boolean array (L, S)
        True = may attend.
    queries, keys, title, ax
        As for `heatmap`.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError, ValueError
        For a mask that is not boolean or not two-dimensional, or a wrong count of labels.

    Examples
    --------
    >>> ax = mask_picture([[True, False], [True, True]], title="A query sees itself and what came before")
    >>> ax.get_ylabel(), ax.get_xlabel()
    ('queries', 'keys')
    """
    return _draw_one(_mask_panel("mask", mask), queries, keys, title, ax)


@_one_look
def mask_pictures(masks, queries=None, keys=None, titles=None, title=None, *, per_row=None):
    """Draw several masks of the same positions side by side: two kinds, or two masks and their combination.

    Parameters
    ----------
    masks : boolean array (N, L, S), or sequence of N arrays (L, S)
        One mask per panel, True = may attend.
    titles : sequence of N str, optional
        One short title per panel. Without them: "mask 0", "mask 1", ….
    queries, keys, title, per_row
        As for `heatmaps`.

    Returns
    -------
    matplotlib Figure
        Its ``axes`` are the panels, in order.

    Raises
    ------
    TypeError, ValueError
        As for `mask_picture`, and for masks of different shapes, no mask, a wrong number of titles, or a `per_row`
        outside 1 to 4.

    Examples
    --------
    >>> fig = mask_pictures([[[True, True]], [[True, False]]], titles=["both sides", "causal"])
    >>> [ax.get_title(loc="left") for ax in fig.axes]
    ['both sides', 'causal']
    """
    count = _count("masks", masks, per_row)
    titles = [f"mask {n}" for n in range(count)] if titles is None else _labels("titles", titles, count, "panel")
    panels = [_mask_panel(f"masks[{n}]", masks[n]) for n in range(count)]
    if len({panel.allowed.shape for panel in panels}) > 1:
        raise ValueError(f"masks: wanted one shape, got {', '.join(str(panel.allowed.shape) for panel in panels)}")
    return _draw_all(panels, queries, keys, titles, title, per_row)


@_one_look
def dots(table, rows=None, columns=None, title=None, *, dot="", row_name="rows", column_name="columns"):
    """Draw a table of yes and no that is no mask: a dot where it is yes, an empty cell where it is no.

    Parameters
    ----------
    table : boolean array (R, C)
    rows, columns : sequences of R and of C labels, optional
        A label of more than 24 characters is shortened with an ellipsis.
    title : str, optional
        A sentence: what is to be seen.
    dot : str
        What a dot means, said below the table.
    row_name, column_name : str
        What the rows and the columns are.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError, ValueError
        For a table that is not boolean or not two-dimensional, or a wrong count of labels.

    Examples
    --------
    >>> ax = dots([[True, False]], ["unscaled"], ["equation", "axis"], "One test sees it", dot="the test fails")
    >>> ax.lines[0].get_xdata().tolist(), ax.get_ylabel()
    ([0], 'rows')
    """
    table = _array("table", table)
    if table.dtype != bool or table.ndim != 2 or 0 in table.shape:
        kind = TypeError if table.dtype != bool else ValueError
        raise kind(f"table: wanted booleans (rows, columns), neither empty, got {table.dtype} of shape {table.shape}")
    rows = _labels("rows", rows, table.shape[0], "row")
    columns = _labels("columns", columns, table.shape[1], "column")
    everywhere = np.ones(table.shape, bool)
    note, names = dot and f"dot: {dot}", (row_name, column_name)
    panel = _Panel(
        np.zeros(table.shape), everywhere, (0.0, 1.0), None, is_mask=True, dots=table, note=note, names=names
    )
    return _draw_one(panel, rows, columns, title, None)


@dataclass
class _Panel:
    """The checked content of one matrix."""

    weights: np.ndarray  # (L, S)
    allowed: np.ndarray  # (L, S)  False is hatched
    limits: tuple  # (vmin, vmax)
    texts: list | None  # (L, S)  what the cells say, or None
    is_mask: bool = False
    dots: np.ndarray | None = None  # (L, S)  where dots stand, if not where it is allowed
    note: str | None = None  # what the signs mean, if not what they mean in a mask
    names: tuple = ("queries", "keys")  # of rows and columns

    @property
    def empty(self):
        """The blocked cells that nothing leaked into; where something did, its colour shows beneath the hatching."""
        return ~self.allowed & ((self.weights == 0) | np.isneginf(self.weights))


def _count(name, matrices, per_row):
    """Count the matrices of a figure of panels, and check how many are to stand in a row."""
    count = len(matrices) if np.iterable(matrices) else 0
    if count == 0:
        raise ValueError(f"{name}: wanted at least one matrix, as (N, L, S), got {matrices!r}")
    if per_row not in (None, 1, 2, 3, 4):
        raise ValueError(f"per_row: wanted 1, 2, 3 or 4, got {per_row!r}")
    return count


def _mask_panel(name, mask):
    """Check a mask, to be drawn with dots and hatching alone."""
    allowed = _two_axes(name, _boolean(mask, name))
    return _Panel(np.zeros(allowed.shape), allowed, (0.0, 1.0), texts=None, is_mask=True)


def _panel(weights, mask, limits, decimals, values):
    """Put a checked matrix and its mask together."""
    allowed = ~np.isneginf(weights)
    if mask is not None:
        mask = _boolean(mask)
        try:
            allowed &= np.broadcast_to(mask, weights.shape)
        except ValueError:
            raise ValueError(f"mask: wanted a shape that broadcasts to {weights.shape}, got {mask.shape}") from None
    printed = max(weights.shape) <= MAX_PRINTED if values is None else values
    texts = [[_say(x, decimals) for x in row] for row in weights] if printed else None
    return _Panel(weights, allowed, limits, texts)


@dataclass
class _Layout:
    """Sizes and labels for matrices of one shape. Inches, unless said otherwise."""

    queries: list
    keys: list
    every_query: int  # every how many-th label has room
    every_key: int
    left: float  # room for the queries' labels and their name
    top: float  # room for the keys' labels and their name
    cell_width: float
    cell_height: float
    upright: bool  # the keys' labels stand on end
    value_size: float  # points


def _layout(panels, queries, keys, room, gaps=0.0, across=1, size=None):
    """Fit `across` matrices into `room` inches; `size` (width, height) fixes a matrix's size instead."""
    rows, columns = panels[0].weights.shape
    few = columns <= MAX_PRINTED
    positions = keys is None
    queries, keys = _labels("queries", queries, rows, "row"), _labels("keys", keys, columns, "column")
    left = max(map(_width, queries)) + _LINE + 2.2 * _PAD
    widest_key = max(map(_width, keys)) + _PAD
    widest_value = max((_width(text) for panel in panels for row in panel.texts or [] for text in row), default=0.0)

    wanted = max(0.75 if across == 1 else 0.6, widest_value + _PAD, widest_key) if few else 0.3
    cell_width = min(wanted, (room - left - gaps) / across / columns)
    cell_height = 0.45 if rows <= MAX_PRINTED else min(cell_width, 0.45, 6.0 / rows)
    if size:
        cell_width, cell_height = size[0] / columns, size[1] / rows

    upright = widest_key > cell_width and not positions
    every_key = _every(cell_width, _LINE if upright else widest_key)
    top = (widest_key if upright else _LINE) + _LINE + _PAD
    value_size = min(_SIZE, _SIZE * 0.88 * cell_width / max(widest_value, 0.01))
    every_query = _every(cell_height, _LINE)
    return _Layout(queries, keys, every_query, every_key, left, top, cell_width, cell_height, upright, value_size)


def _draw_one(panel, queries, keys, title, ax):
    """Draw one matrix in a figure of its own, or in the reader's `ax`."""
    if ax is None:
        return _draw_all([panel], queries, keys, [None], title, per_row=1).axes[0]
    box = ax.get_window_extent()
    size = box.width / ax.figure.dpi, box.height / ax.figure.dpi
    _draw_panel(ax, panel, _layout([panel], queries, keys, MAX_WIDTH, size=size))
    ax.set_title(title or "", loc="left", **_TITLE)
    return ax


def _draw_all(panels, queries, keys, titles, title, per_row):
    """Make a figure that fits the panels, `per_row` beside each other, and draw them."""
    rows, columns = panels[0].weights.shape
    bar = 0.0 if panels[0].texts or panels[0].is_mask else 0.75  # no printed values: a colour bar
    gap = 0.25
    for across in [per_row] if per_row else [2, 1]:
        across = min(across, len(panels))
        layout = _layout(panels, queries, keys, MAX_WIDTH - 2 * _PAD - bar, (across - 1) * gap, across)
        if layout.value_size >= 9:
            break
    down = math.ceil(len(panels) / across)
    wide, high = columns * layout.cell_width, rows * layout.cell_height
    step = max(wide, *(_width(text or "", bold=True) for text in titles)) + gap
    own_title = 1.5 * _LINE if any(titles) else 0.0
    block = own_title + layout.top + high + 1.5 * _PAD

    width = 2 * _PAD + layout.left + across * step - gap + bar
    fig, start = _figure(width, down * block, title, _note(panels))
    for n, (panel, text) in enumerate(zip(panels, titles, strict=True)):
        row, column = divmod(n, across)
        top = start + row * block + own_title + layout.top
        ax = _axes(fig, _PAD + layout.left + column * step, top, wide, high)
        image = _draw_panel(ax, panel, layout, name_queries=column == 0)
        ax.set_title(text or "", loc="left", pad=72 * layout.top, **_TITLE)
    if bar:
        fig.colorbar(image, cax=_axes(fig, width - bar, start + own_title + layout.top, 0.18, min(high, 3.0)))
        _keep_ticks(fig.axes[-1])
    return fig


def _note(panels):
    """Say what the signs in the cells mean."""
    if panels[0].note is not None:
        return panels[0].note
    hatched = "hatched: blocked" if any((~panel.allowed).any() for panel in panels) else ""
    dotted = "dot: may attend" if panels[0].is_mask else ""
    return " · ".join(filter(None, [dotted, hatched]))


def _draw_panel(ax, panel, layout, name_queries=True):
    """Colour, hatch, print and label the cells of one matrix."""
    empty = panel.empty
    colours = mpl.colors.ListedColormap(["white"]) if panel.is_mask else mpl.colormaps["cividis"]
    image = ax.imshow(
        np.ma.masked_array(np.where(empty, 0.0, panel.weights), mask=empty),
        cmap=colours.with_extremes(bad=PAPER),
        vmin=panel.limits[0],
        vmax=panel.limits[1],
        aspect="auto",
        interpolation="nearest",
    )
    faces = image.to_rgba(image.get_array())  # (L, S, 4)
    _hatch(ax, np.argwhere(empty), "#909090")
    for i, j in np.argwhere(~panel.allowed & ~empty):
        _hatch(ax, [(i, j)], _ink(faces[i, j]))
    if panel.is_mask:
        i, j = np.nonzero(panel.allowed if panel.dots is None else panel.dots)
        dot = min(9.0, 36 * min(layout.cell_width, layout.cell_height))  # points: at most half a cell
        ax.plot(j, i, "o", color=ACCENT, markersize=dot, markeredgewidth=0)
    for i, row in enumerate(panel.texts or []):
        for j, text in enumerate(row):
            behind = None if panel.allowed[i, j] else {"facecolor": faces[i, j], "edgecolor": "none", "pad": 1.5}
            ax.text(
                j, i, text, ha="center", va="center", color=_ink(faces[i, j]), fontsize=layout.value_size, bbox=behind
            )
    _name_axes(ax, layout, panel.names, name_queries)
    if min(layout.cell_width, layout.cell_height) > 0.2:  # thin lines between the cells
        ax.set_xticks(np.arange(len(layout.keys) - 1) + 0.5, minor=True)
        ax.set_yticks(np.arange(len(layout.queries) - 1) + 0.5, minor=True)
        ax.grid(which="minor", color=GREY if panel.is_mask else "white", linewidth=0.8)
        ax.tick_params(which="minor", length=0)
    return image


def _hatch(ax, cells, colour):
    """Hatch cells (i, j), all in one path: hundreds of them would take seconds one by one."""
    corners = [(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5), (-0.5, -0.5)]
    squares = [Path(np.add(corners, (j, i)), closed=True) for i, j in cells]
    if squares:
        path = Path.make_compound_path(*squares)
        ax.add_patch(PathPatch(path, fill=False, hatch="////", edgecolor=colour, linewidth=0))


def _name_axes(ax, layout, names, name_queries):
    """Put the keys above and the queries on the left."""
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    at = range(0, len(layout.keys), layout.every_key)
    upright = {"rotation": 90, "va": "bottom"} if layout.upright else {}
    ax.set_xticks(at, [layout.keys[j] for j in at], parse_math=False, **upright)
    at = range(0, len(layout.queries), layout.every_query)
    ax.set_yticks(at, [layout.queries[i] if name_queries else "" for i in at], parse_math=False)
    ax.set_xlabel(names[1], color=GREY, fontsize=_SIZE, labelpad=5)
    if name_queries:
        ax.set_ylabel(names[0], color=GREY, fontsize=_SIZE, labelpad=6)
    ax.tick_params(length=0, pad=4, labelsize=_SIZE)
    ax.spines[:].set(color=GREY, linewidth=0.8)


# ---- The flow of shapes ---------------------------------------------------------------------------------------------


@_one_look
def flow_of_shapes(steps, title=None):
    """Draw how arrays become other arrays: a box per array with its name and shape, an arrow per operation.

    The flow runs downwards, so that it is read on a phone without turning it.

    Parameters
    ----------
    steps : sequence of (operation, boxes) or (operation, boxes, sources)
        One step a row. ``operation`` is the text beside the arrow ("" in the first step). ``boxes`` maps each name to
        its array, whose shape is written down, or to a shape. ``sources`` names the boxes that the arrows come from:
        any above; by default all of the row directly above.
    title : str, optional
        A sentence: what is to be seen.

    Returns
    -------
    matplotlib Axes
        Its ``texts`` are the boxes and the operations.

    Raises
    ------
    TypeError, ValueError
        For a step of another form, a name used twice, a source that does not stand above, a row that is too wide.

    Examples
    --------
    >>> X = np.ones((3, 4))
    >>> ax = flow_of_shapes([("", {"X": X}), ("× W", {"Q": X[:, :2], "K": (3, 2)}), ("Q Kᵀ", {"scores": (3, 3)})])
    >>> [text.get_text() for text in ax.texts]
    ['X  (3, 4)', 'Q  (3, 2)', 'K  (3, 2)', '× W', 'scores  (3, 3)', 'Q Kᵀ']
    """
    rows = _flow_rows(steps)
    # Name and shape stand in one line, or in two where the widest row would not fit on a phone.
    for joint in ("  ", "\n"):
        texts = [{name: f"{name}{joint}{_shape(name, array)}" for name, array in row.boxes.items()} for row in rows]
        widths = [{name: _width(text) + 2 * _PAD for name, text in row.items()} for row in texts]
        widest = max(sum(row.values()) + 2 * _PAD * (len(row) - 1) for row in widths)
        if widest <= 3.7:
            break
    if widest > MAX_WIDTH - 2 * _PAD:
        raise ValueError(
            f"steps: wanted rows of at most {MAX_WIDTH} inches, got one of {widest:.1f}: shorten its names"
        )
    box_height = (1 if joint == "  " else 2) * _LINE + _PAD
    spots = _flow_places(rows, widths, box_height)

    left = min(spot.x - spot.width / 2 for spot in spots.values())
    right = max(spot.x + spot.width / 2 for spot in spots.values())
    right = max(right, *(x for row in rows for x in (row.label_end, *row.detours.values()))) + 0.02
    tall = max(spot.y for spot in spots.values()) + box_height
    fig, start = _figure(right - left + 2 * _PAD, tall + _PAD, title)
    room = fig.get_figwidth() - 2 * _PAD
    ax = _axes(fig, _PAD, start, room, tall)
    middle = (left + right) / 2
    ax.set(xlim=(middle - room / 2, middle + room / 2), ylim=(tall, 0))  # inches, downwards
    ax.axis("off")
    for row, names in zip(rows, texts, strict=True):
        for name, text in names.items():
            _flow_box(ax, spots[name], box_height, text)
        _flow_arrows(ax, row, spots, box_height)
    return ax


@dataclass
class _Spot:
    """Where a box stands: its middle, its upper edge, its width (inches, y downwards)."""

    x: float
    y: float
    width: float


@dataclass
class _Row:
    """One step of a flow; the last three are filled in when the boxes have their places."""

    operation: str
    boxes: dict
    near: list  # the sources in the row directly above
    far: list  # the sources above that
    label: tuple = (0.0, 0.0)
    label_end: float = 0.0
    detours: dict | None = None  # far source: where its line runs down


def _flow_rows(steps):
    """Check the steps and find out for each from where its arrows come."""
    rows, seen = [], []
    for number, step in enumerate(steps):
        if (
            not isinstance(step, tuple | list)
            or len(step) not in (2, 3)
            or not isinstance(step[1], dict)
            or not step[1]
        ):
            raise TypeError(f"steps: wanted (operation, {{name: array or shape}}, sources), got {step!r} at {number}")
        operation, boxes, sources = [*step, None][:3]
        above = list(rows[-1].boxes) if rows else []
        sources = above if sources is None else [sources] if isinstance(sources, str) else list(sources)
        for name in boxes:
            if name in seen:
                raise ValueError(f"steps: wanted each name once, got {name!r} again at {number}")
        for name in sources:
            if name not in seen:
                raise ValueError(
                    f"steps: wanted sources that stand above ({', '.join(seen)}), got {name!r} at {number}"
                )
        seen += boxes
        near = [name for name in sources if name in above]
        rows.append(_Row(str(operation or ""), boxes, near, [name for name in sources if name not in above]))
    if not rows:
        raise ValueError("steps: wanted at least one step, got none")
    return rows


def _flow_places(rows, widths, box_height):
    """Place boxes under their sources, operations beside the arrows, and lines that skip rows on the right."""
    spots = {}
    for number, (row, wide) in enumerate(zip(rows, widths, strict=True)):
        y = number * (box_height + _GAP)
        x = float(np.mean([spots[name].x for name in row.near])) if row.near else 0.0
        x -= (sum(wide.values()) + 2 * _PAD * (len(wide) - 1)) / 2
        for name, width in wide.items():
            spots[name] = _Spot(x + width / 2, y, width)
            x += width + 2 * _PAD
        # The operation stands beside the one line that all arrows of the step share; above the fork or below it.
        targets = [spots[name].x for name in row.boxes]
        starts = [spots[name].x for name in row.near] or targets
        if len(starts) == 1 == len(targets):
            row.label = targets[0] + 0.08, y - _GAP / 2
        elif len(starts) == 1:
            row.label = starts[0] + 0.08, y - 0.76 * _GAP
        elif len(targets) == 1:
            row.label = targets[0] + 0.08, y - 0.26 * _GAP
        else:
            row.label = max(starts + targets) + 0.08, y - _GAP / 2
        row.label_end = row.label[0] + _width(row.operation)

    for number, row in enumerate(rows):
        row.detours = {}
        for name in row.far:
            first = next(n for n, other in enumerate(rows) if name in other.boxes)
            passed = [spots[box] for other in rows[first + 1 : number + 1] for box in other.boxes]
            edge = [spot.x + spot.width / 2 for spot in passed] + [r.label_end for r in rows[first + 1 : number + 1]]
            row.detours[name] = max(spots[name].x, max(edge) + 1.5 * _PAD, *[x + _PAD for x in row.detours.values()])
    return spots


def _flow_box(ax, spot, height, text):
    """Draw one box."""
    corner = spot.x - spot.width / 2, spot.y
    look = {"boxstyle": "round,pad=0,rounding_size=0.06", "facecolor": "white", "edgecolor": GREY, "clip_on": False}
    ax.add_patch(FancyBboxPatch(corner, spot.width, height, **look))
    ax.text(spot.x, spot.y + height / 2, text, ha="center", va="center", linespacing=1.3)


def _flow_arrows(ax, row, spots, box_height):
    """Draw the arrows into one row, and the operation beside them."""
    targets = [spots[name] for name in row.boxes]
    top = targets[0].y
    for source in (spots[name] for name in row.near):
        below = source.y + box_height
        for target in targets:
            fork = (below + top) / 2
            _arrow(ax, [(source.x, below), (source.x, fork), (target.x, fork), (target.x, top)])
    for name, x in row.detours.items():
        source, target = spots[name], targets[-1]
        below = source.y + box_height
        fork = below + _GAP / 2
        side = target.x + target.width / 2
        middle = target.y + box_height / 2
        _arrow(ax, [(source.x, below), (source.x, fork), (x, fork), (x, middle), (side, middle)])
    if row.operation:
        ax.text(*row.label, row.operation, ha="left", va="center", color=ACCENT)


def _arrow(ax, points):
    """Draw a line through the points, with a head on its last piece."""
    *_, before, last = points
    ax.plot(*zip(*points[:-1], strict=True), color=GREY, linewidth=1.2, solid_joinstyle="miter")
    ax.add_patch(FancyArrowPatch(before, last, arrowstyle="-|>", mutation_scale=11, shrinkA=0, shrinkB=0, color=GREY))


def _shape(name, array):
    """Write down the shape of an array, or a shape that is given as one."""
    if isinstance(array, tuple) and all(isinstance(size, int | np.integer | str) for size in array):
        shape = array
    elif hasattr(array, "shape"):
        shape = array.shape
    else:
        raise TypeError(f"steps: wanted an array or a shape for {name!r}, got {array!r}")
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


# ---- Heads ----------------------------------------------------------------------------------------------------------


@_one_look
def arrays(lines, rows=None, title=None, *, shade=None, decimals=0):
    """Draw small arrays with their numbers, line by line, each cell shaded by where its number comes from.

    Parameters
    ----------
    lines : sequence of dict of name to array (R, C)
        One dict per line of the picture; its arrays stand side by side, each under its name.
    rows : sequence of R labels, optional
        Names of the rows, the same for all arrays. Without them the positions 0, 1, 2, … stand there.
    title : str, optional
        A sentence: what is to be seen.
    shade : function of a number to 0, 1, 2 or 3, optional
        Gives each number its shade: white, the accent colour, light grey, dark grey. White for all unless given.
    decimals : int
        How many decimals are printed.

    Returns
    -------
    matplotlib Figure
        Its ``axes`` are the arrays, in order.

    Raises
    ------
    TypeError, ValueError
        For no arrays, arrays that are not two-dimensional or differ in their rows, a shade that is not one of the
        four, a wrong number of labels.

    Examples
    --------
    >>> fig = arrays([{"x": [[10, 11]]}, {"head 0": [[10]], "head 1": [[11]]}], ["cat"], shade=lambda n: n % 10)
    >>> [ax.get_title(loc="left") for ax in fig.axes]
    ['x', 'head 0', 'head 1']
    """
    lines = [{str(name): _numbers(name, array) for name, array in line.items()} for line in lines]
    if not lines or not all(lines):
        raise ValueError("lines: wanted at least one array in each line, got none")
    for name, array in (pair for line in lines for pair in line.items()):
        if array.ndim != 2 or array.size == 0:
            raise ValueError(f"{name}: wanted rows and columns, neither empty, got shape {array.shape}")
    heights = {array.shape[0] for line in lines for array in line.values()}
    if len(heights) > 1:
        raise ValueError(f"lines: wanted arrays with equally many rows, got {', '.join(map(str, sorted(heights)))}")
    rows = _labels("rows", rows, heights.pop(), "row")
    texts = [_say(number, decimals) for line in lines for array in line.values() for number in array.ravel()]
    cell, high, gap = max(0.45, max(map(_width, texts)) + 2 * _PAD), 0.36, 0.3
    left, name_line = max(map(_width, rows)) + _PAD, _LINE + 0.08
    steps = [
        [max(cell * array.shape[1], _width(name, bold=True)) + gap for name, array in line.items()] for line in lines
    ]
    block = name_line + high * len(rows) + 2 * _PAD
    fig, start = _figure(2 * _PAD + left + max(map(sum, steps)) - gap, block * len(lines), title)
    for down, (line, step) in enumerate(zip(lines, steps, strict=True)):
        for across, (name, array) in enumerate(line.items()):
            place = _PAD + left + sum(step[:across]), start + down * block + name_line
            ax = _axes(fig, *place, cell * array.shape[1], high * len(rows))
            _draw_array(ax, array, shade, decimals)
            ax.set_title(name, loc="left", pad=5, **_TITLE)
            ax.set_yticks(range(len(rows)), rows if across == 0 else [""] * len(rows), parse_math=False)
    return fig


def _draw_array(ax, array, shade, decimals):
    """Shade and print the numbers of one array."""
    faces = ["white", ACCENT, PAPER, GREY]
    shades = np.array([[0 if shade is None else shade(number) for number in row] for row in array])  # (R, C)
    if not np.isin(shades, range(len(faces))).all():
        raise ValueError(f"shade: wanted 0, 1, 2 or 3 for each number, got {shades.tolist()}")
    colours = mpl.colors.ListedColormap(faces)
    ax.imshow(shades, cmap=colours, vmin=-0.5, vmax=3.5, aspect="auto", interpolation="nearest")
    for (i, j), number in np.ndenumerate(array):
        ink = _ink(mpl.colors.to_rgba(faces[int(shades[i, j])]))
        ax.text(j, i, _say(number, decimals), ha="center", va="center", color=ink)
    for axis, count in ((ax.xaxis, array.shape[1]), (ax.yaxis, array.shape[0])):  # thin lines between the cells
        axis.set_ticks(np.arange(count - 1) + 0.5, minor=True)
    ax.grid(which="minor", color=GREY, linewidth=0.8)
    ax.set_xticks([])
    ax.tick_params(which="both", length=0, pad=4, labelsize=_SIZE)
    ax.spines[:].set(color=GREY, linewidth=0.8)


@_one_look
def head_map(maps, title=None):
    """Draw which key/value head serves each query head: query heads above, a line from each to the one it reads.

    Parameters
    ----------
    maps : dict of name to sequence of H int
        One picture below the other, each under its name. Entry h is the key/value head that query head h reads; the
        largest says how many there are.
    title : str, optional
        A sentence: what is to be seen.

    Returns
    -------
    matplotlib Figure
        Its ``axes`` are the maps, in order.

    Raises
    ------
    TypeError, ValueError
        For no map, a map without heads, heads that are not integers ≥ 0.

    Examples
    --------
    >>> fig = head_map({"grouped": [0, 0, 1, 1]})
    >>> [text.get_text() for text in fig.axes[0].texts]
    ['q0', 'q1', 'q2', 'q3', 'kv0', 'kv1']
    """
    if not isinstance(maps, dict) or not maps:
        raise TypeError(f"maps: wanted a dict of names and key/value heads, got {maps!r}")
    maps = {str(name): _heads_read(name, heads) for name, heads in maps.items()}
    step, box_height, gap = 0.7, _LINE + _PAD, 0.5
    wide = max(step * max(len(heads), heads.max() + 1) for heads in maps.values())
    tall = 2 * box_height + gap
    block = tall + _LINE + 3 * _PAD
    across = max(wide, *(_width(name, bold=True) for name in maps))
    fig, start = _figure(across + 2 * _PAD, block * len(maps), title)
    for number, (name, heads) in enumerate(maps.items()):
        ax = _axes(fig, _PAD, start + number * block + _LINE + _PAD, wide, tall)
        ax.set(xlim=(0, wide), ylim=(tall, 0))  # inches, downwards
        ax.set(xticks=[], yticks=[])
        ax.axis("off")
        ax.set_title(name, loc="left", pad=5, **_TITLE)
        H, G = len(heads), heads.max() + 1
        asks = [_Spot((h + 0.5) * wide / H, 0.0, 0.5) for h in range(H)]
        serves = [_Spot((g + 0.5) * wide / G, box_height + gap, 0.5) for g in range(G)]
        for h, g in enumerate(heads):
            _arrow(ax, [(asks[h].x, box_height), (serves[g].x, box_height + gap)])
        for letter, spots in (("q", asks), ("kv", serves)):
            for n, spot in enumerate(spots):
                _flow_box(ax, spot, box_height, f"{letter}{n}")
    return fig


def _heads_read(name, heads):
    """Return the key/value head that each query head reads."""
    array = _array(name, heads)
    if array.dtype.kind not in "iu" or array.ndim != 1 or array.size == 0 or array.min() < 0:
        raise ValueError(f"maps[{name!r}]: wanted one integer ≥ 0 per query head, got {heads!r}")
    return array


@_one_look
def all_heads(weights, title=None, *, accent=()):
    """Draw every head of every layer as a small map: a row per layer, a column per head, no values.

    It is there for patterns: a diagonal, a bright column. For numbers, draw one of the heads with `heatmap`.

    Parameters
    ----------
    weights : array (layers, heads, L, S)
        Finite weights, drawn from 0 (dark) to 1 (bright).
    title : str, optional
        A sentence: what is to be seen.
    accent : sequence of (layer, head), optional
        The maps to point out, by a frame.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError, ValueError
        For weights that have not four axes, are not finite, or have too many columns to draw; a head that is not there.

    Examples
    --------
    >>> ax = all_heads(np.full((2, 3, 4, 4), 0.25), "Two layers, three heads", accent=[(0, 2)])
    >>> ax.get_ylabel(), ax.get_xlabel(), len(ax.patches)
    ('layer', 'head', 1)
    """
    weights = _numbers("weights", weights)
    if weights.ndim != 4 or 0 in weights.shape or np.isinf(weights).any():
        raise ValueError(f"weights: wanted finite (layers, heads, L, S), none of them 0, got shape {weights.shape}")
    layers, heads, L, S = weights.shape
    accent = [tuple(pair) for pair in accent]
    for pair in accent:
        if len(pair) != 2 or not (0 <= pair[0] < layers and 0 <= pair[1] < heads):
            raise ValueError(f"accent: wanted (layer, head) below ({layers}, {heads}), got {pair!r}")
    high, wide = L + 1, S + 1  # a map and the gap beside it, in cells
    left, top = _width(str(layers)) + _LINE + 2.2 * _PAD, 2 * _LINE + _PAD
    room = int(100 * (MAX_WIDTH - left - _PAD))  # pixels
    cell = min(room // (heads * wide - 1), 8) / 100  # inches: whole pixels
    if cell == 0:
        raise ValueError(f"weights: wanted at most {room} columns with the gaps between, got {heads * wide - 1}")
    mosaic = np.full((layers, high, heads, wide), np.nan)
    mosaic[:, :L, :, :S] = weights.transpose(0, 2, 1, 3)
    mosaic = mosaic.reshape(layers * high, heads * wide)[:-1, :-1]

    across, down = mosaic.shape[1] * cell, mosaic.shape[0] * cell
    fig, start = _figure(left + across + _PAD, top + down + _PAD, title, "dark: weight 0 · bright: weight 1")
    ax = _axes(fig, left, start + top, across, down)
    ax.imshow(
        np.ma.masked_invalid(mosaic),
        cmap=mpl.colormaps["cividis"].with_extremes(bad="white"),
        vmin=0.0,
        vmax=1.0,
        aspect="auto",
        interpolation="nearest",
    )
    for layer, head in accent:
        corner = head * wide - 1, layer * high - 1
        ax.add_patch(Rectangle(corner, wide, high, fill=False, edgecolor=ACCENT, linewidth=2, clip_on=False))
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set_xticks(*_middles(heads, wide, wide * cell))
    ax.set_yticks(*_middles(layers, high, high * cell))
    ax.set_xlabel("head", color=GREY, fontsize=_SIZE, labelpad=5)
    ax.set_ylabel("layer", color=GREY, fontsize=_SIZE, labelpad=6)
    ax.tick_params(length=0, pad=4, labelsize=_SIZE)
    ax.spines[:].set_visible(False)
    return ax


def _middles(count, size, inches):
    """Return the middles of so many maps and their numbers, as many as have room."""
    every = _every(inches, max(_LINE, _width(str(count))))
    return [(n * size + (size - 2) / 2) for n in range(0, count, every)], [str(n) for n in range(0, count, every)]


# ---- Bars and lines -------------------------------------------------------------------------------------------------


@_one_look
def bars(weights, keys=None, title=None, *, mask=None, accent=None, vmax=1.0, decimals=2):
    """Draw one row of weights: a bar per key, its value at its end.

    Parameters
    ----------
    weights : array (S,)
        Finite numbers, none below 0.
    keys : sequence of S labels, optional
        Usually tokens. Without them the positions 0, 1, 2, … stand there.
    title : str, optional
        A sentence: what is to be seen.
    mask : boolean array (S,), optional
        True = may attend. A key for which it is False is marked "blocked".
    accent : int or sequence of int, optional
        The positions of the keys to point out.
    vmax : float or None
        The value of a bar of full length; None takes the largest weight.
    decimals : int
        How many decimals are printed.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError, ValueError
        For weights that are not one-dimensional, not finite or negative, a mask that is not boolean, a wrong number
        of labels.

    Examples
    --------
    >>> ax = bars([1.0, 0.0], ["cat", "mat"], "The second key is blocked", mask=[True, False])
    >>> [text.get_text() for text in ax.texts]
    ['1.00', '0.00 blocked']
    """
    weights = _numbers("weights", weights)
    if weights.ndim != 1 or weights.size == 0:
        raise ValueError(f"weights: wanted one axis (keys) that is not empty, got shape {weights.shape}")
    if not (weights >= 0).all() or np.isinf(weights).any():
        raise ValueError(f"weights: wanted finite numbers, none below 0, got {weights.min()} to {weights.max()}")
    keys = _labels("keys", keys, weights.size, "bar")
    allowed = np.ones(weights.size, bool) if mask is None else _boolean(mask)
    if allowed.shape != weights.shape:
        raise ValueError(f"mask: wanted shape {weights.shape}, got {allowed.shape}")
    vmax = weights.max() or 1.0 if vmax is None else vmax
    texts = [_say(w, decimals) + ("" if ok else " blocked") for w, ok in zip(weights, allowed, strict=True)]
    pointed_out = set(np.atleast_1d([] if accent is None else accent).tolist())

    left, length, after = max(map(_width, keys)) + 2 * _PAD, 2.4, max(map(_width, texts)) + _PAD
    high = 0.34 * weights.size
    fig, start = _figure(2 * _PAD + left + length + after, high + _PAD, title)
    ax = _axes(fig, _PAD + left, start, length + after, high)
    at = np.arange(weights.size)
    colours = [ACCENT if n in pointed_out else GREY for n in range(weights.size)]
    ax.barh(at, weights, height=0.6, color=colours)
    for y, weight, text in zip(at, weights, texts, strict=True):
        ax.annotate(
            text, (min(weight, vmax), y), xytext=(4, 0), textcoords="offset points", va="center", annotation_clip=False
        )
    ax.set(xlim=(0, vmax * (length + after) / length), ylim=(weights.size - 0.5, -0.5), xticks=[])
    ax.set_yticks(at, keys, parse_math=False)
    ax.tick_params(length=0, pad=4)
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    ax.spines["left"].set(color=GREY, linewidth=0.8)
    return ax


@_one_look
def lines(x, series, title=None, *, xlabel="", ylabel="", xscale="linear", yscale="linear"):
    """Draw one line per series, each with its own marker and dashes, its name at its end instead of in a legend.

    Parameters
    ----------
    x : array (N,)
        Finite numbers, shared by all the lines.
    series : dict of name to array (N,)
        One to six lines, finite. The first one is the point and has the accent colour; the others are grey.
    title : str, optional
        A sentence: what is to be seen.
    xlabel, ylabel : str
        What the axes measure, with units. `ylabel` is written level, above the axis.
    xscale, yscale : "linear" or "log"
        The scale of each axis.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError, ValueError
        For arrays of other shapes, numbers that are not finite, no or more than six series, an unknown scale, a number
        that is not positive on a logarithmic axis.

    Examples
    --------
    >>> ax = lines([1, 2, 4], {"with 1/√d": [1.0, 1.0, 1.0], "without": [1.0, 2.0, 4.0]}, xlabel="d")
    >>> [text.get_text() for text in ax.texts]
    ['with 1/√d', 'without']
    """
    if not isinstance(series, dict) or not 1 <= len(series) <= len(_MARKERS):
        got = f"{len(series)}" if isinstance(series, dict) else type(series).__name__
        raise ValueError(f"series: wanted a dict of 1 to {len(_MARKERS)} names and arrays, got {got}")
    x = _finite_line("x", x, xscale, "xscale", None)
    series = {str(name): _finite_line(f"series[{name!r}]", y, yscale, "yscale", x.shape) for name, y in series.items()}
    left, after, high = 0.75, max(map(_width, series)) + 0.15, 2.6
    length = min(3.1, MAX_WIDTH - left - after - 2 * _PAD)
    own_title = _LINE + _PAD if ylabel else 0.0
    fig, start = _figure(left + length + after + 2 * _PAD, own_title + high + 0.65, title)
    ax = _axes(fig, left, start + own_title, length, high)
    for n, y in enumerate(series.values()):
        ax.plot(x, y, color=GREY if n else ACCENT, marker=_MARKERS[n], linestyle=_DASHES[n], zorder=3 - 0.1 * n)
    ax.set(xscale=xscale, yscale=yscale, xlabel=xlabel)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color=PAPER, linewidth=0.8)
    ax.set_axisbelow(True)
    if ylabel:
        ax.set_title(ylabel, loc="left", fontsize=_SIZE, color=GREY)
    _keep_ticks(ax)
    _name_lines(ax, x, series)
    return ax


def _name_lines(ax, x, series):
    """Write each line's name at its right end, pushed apart where they would overlap."""
    end = int(np.argmax(x))
    ax.set_ylim(ax.get_ylim())  # the limits stay as they are from here on
    to_pixels, to_data = ax.transData, ax.transData.inverted()
    line = _LINE * ax.figure.dpi
    order = sorted(range(len(series)), key=lambda n: list(series.values())[n][end])
    heights = [to_pixels.transform((x[end], list(series.values())[n][end]))[1] for n in order]
    for n in range(1, len(heights)):
        heights[n] = max(heights[n], heights[n - 1] + line)
    overshoot = max(0.0, heights[-1] - ax.get_window_extent().y1 - line)
    names = list(series)
    for n, height in sorted(zip(order, heights, strict=True)):
        y = to_data.transform((0, height - overshoot))[1]
        ax.annotate(
            names[n],
            (x[end], y),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            color=GREY if n else ACCENT,
            annotation_clip=False,
            parse_math=False,
        )


def alt_text(weights, queries=None, keys=None):
    """Propose alt text for a heatmap: its size, and for each query the key with the largest weight.

    It is a start. Say in your own words what the picture is there to show, and keep the two or three numbers that
    decide it.

    Parameters
    ----------
    weights : array (L, S)
        As for `heatmap`.
    queries, keys : sequences of labels, optional
        As for `heatmap`.

    Returns
    -------
    str

    Raises
    ------
    TypeError, ValueError
        As for `heatmap`.

    Examples
    --------
    >>> alt_text([[0.5, 0.5], [0.9, 0.1]], ["it", "sat"], ["cat", "mat"])
    'Heatmap of weights, 2 queries by 2 keys. it: 0.50 on each of cat, mat; sat: most on cat, 0.90.'
    """
    weights = _matrix("weights", weights)
    rows, columns = weights.shape
    queries, keys = _labels("queries", queries, rows, "row"), _labels("keys", keys, columns, "column")
    says = []
    for query, row in zip(queries, weights, strict=True):
        top = [key for key, weight in zip(keys, row, strict=True) if np.isclose(weight, row.max(), rtol=1e-6)]
        most = f"most on {top[0]}, " if len(top) == 1 else ""
        where = "" if len(top) == 1 else f" on each of {', '.join(top)}"
        says.append(f"{query}: {most}{_say(row.max(), 2)}{where}")
    count = f"{rows} {'query' if rows == 1 else 'queries'} by {columns} {'key' if columns == 1 else 'keys'}"
    return f"Heatmap of weights, {count}. {'; '.join(says)}."


# ---- Checks ---------------------------------------------------------------------------------------------------------


def _array(name, values):
    """Read anything array-like; of a torch tensor the values, wherever it lives and whatever its gradient."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values  # NumPy has no bfloat16
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name}: wanted an array, got {type(values).__name__} ({error})") from None


def _numbers(name, values):
    """Return a float64 array without NaN and +inf."""
    array = _array(name, values)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: wanted real numbers, got dtype {array.dtype}")
    array = array.astype(np.float64)
    for bad, said in ((np.isnan(array), "NaN"), (np.isposinf(array), "+inf")):
        if bad.any():
            where = ", ".join(map(str, np.argwhere(bad)[0]))
            raise ValueError(f"{name}: wanted finite numbers, got {said} at [{where}] ({bad.sum()} in all)")
    return array


def _two_axes(name, array):
    """Return a matrix with at least one row and one column as it is."""
    if array.ndim != 2 or 0 in array.shape:
        several = array.ndim == 3 and not name.startswith("mask")
        hint = f"; draw one head, {name}[0], or all with heatmaps" if several else ""
        raise ValueError(f"{name}: wanted two axes (queries, keys), neither empty, got shape {array.shape}{hint}")
    return array


def _matrix(name, values):
    """Return weights (L, S) as float64."""
    return _two_axes(name, _numbers(name, values))


def _boolean(mask, name="mask"):
    """Return a mask as a boolean array."""
    array = _array(name, mask)
    if array.dtype != bool:
        raise TypeError(f"{name}: wanted booleans (True = may attend), got dtype {array.dtype}")
    return array


def _labels(name, labels, count, each):
    """Return `count` labels as text, one line each and not too long."""
    if labels is None:
        return [str(n) for n in range(count)]
    if isinstance(labels, str):
        raise TypeError(f"{name}: wanted a sequence of labels, got the one text {labels!r}")
    labels = [_drawable(str(label)) for label in labels]
    if len(labels) != count:
        raise ValueError(f"{name}: wanted {count}, one per {each}, got {len(labels)}")
    longest = 24 if name in ("queries", "keys") else 99
    return [label if len(label) <= longest else label[: longest - 1] + "…" for label in labels]


def _limits(matrices, vmin, vmax):
    """Return the values at the two ends of the colours."""
    finite = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    low = float(finite.min(initial=np.inf)) if vmin is None else float(vmin)
    high = float(finite.max(initial=-np.inf)) if vmax is None else float(vmax)
    if vmin is not None and vmax is not None and not low < high:
        raise ValueError(f"vmin, vmax: wanted vmin below vmax, got {vmin} and {vmax}")
    if not math.isfinite(low):
        low = high - 1.0 if math.isfinite(high) else 0.0
    return low, high if high > low else low + 1.0


def _finite_line(name, values, scale, scale_name, shape):
    """Return the numbers of one line, checked against the axis they are drawn on."""
    if scale not in ("linear", "log"):
        raise ValueError(f"{scale_name}: wanted 'linear' or 'log', got {scale!r}")
    array = _numbers(name, values)
    if array.ndim != 1 or array.size == 0 or shape not in (None, array.shape):
        wanted = "one axis that is not empty" if shape is None else f"shape {shape}, as x has"
        raise ValueError(f"{name}: wanted {wanted}, got shape {array.shape}")
    if np.isinf(array).any() or (scale == "log" and not (array > 0).all()):
        wanted = "positive numbers for a logarithmic axis" if scale == "log" else "finite numbers"
        raise ValueError(f"{name}: wanted {wanted}, got {array.min()} to {array.max()}")
    return array


# ---- Text and sizes -------------------------------------------------------------------------------------------------


def _say(value, decimals):
    """Write a number: −∞ for a blocked score, a true minus sign, no −0.00."""
    if value == -np.inf:
        return "−∞"
    text = f"{value:.{decimals}f}"
    return (text[1:] if float(text) == 0 else text).replace("-", "−") if text.startswith("-") else text


def _font(bold=False):
    return get_font(findfont(FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")))


def _drawable(text):
    """Replace what the font can't draw by a box, and a line break by its sign: tokens may hold anything."""
    return "".join(c if _font().get_char_index(ord(c)) else "□" for c in text.replace("\n", "↵"))


@functools.cache
def _width(text, bold=False):
    """Measure a line of text, in inches.

    The glyphs' own widths are summed, without hinting or kerning, so that a figure has the same size whatever the
    version of matplotlib.
    """
    font = _font(bold)
    font.set_size(_SIZE, 72)
    return max(sum(font.load_char(ord(c)).linearHoriAdvance for c in line) / 65536 / 72 for line in text.split("\n"))


def _wrap(text, width, bold=False):
    """Break a text into lines that are at most `width` inches wide."""
    lines = []
    for word in (text or "").split():
        if lines and _width(f"{lines[-1]} {word}", bold) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _ink(face):
    """Choose black or white text, whichever has more contrast against the colour behind it (WCAG 2, luminance)."""
    channels = np.asarray(face[:3])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    return "black" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "white"


def _every(cell, label):
    """Say that every how many-th label is shown so that they don't overlap."""
    for step in (1, 2, 5):
        if step * cell >= label - 1e-9:
            return step
    return 10 * _every(10 * cell, label)


def _keep_ticks(ax):
    """Make the ticks that matplotlib chooses now: left to the first drawing, they would have the reader's settings."""
    ax.tick_params(labelsize=_SIZE)
    ax.figure.draw_without_rendering()


def _figure(width, height, title=None, note=""):
    """Make a figure around a body of this size, with a title above and a note below it.

    Returns the figure and how far below its upper edge the body begins.
    """
    width = max(width, 3.6 if title or note else 0.0)
    if width > MAX_WIDTH + 1e-6:
        raise ValueError(f"title, labels: wanted a figure of at most {MAX_WIDTH} inches, got {width:.1f}: shorten them")
    above, below = _wrap(title, width - 2 * _PAD, bold=True), _wrap(note, width - 2 * _PAD)
    start = _PAD + (len(above) * _LINE + _PAD if above else 0.0)
    height = start + height + (len(below) * _LINE + _PAD if below else 0.0)
    width, height = math.ceil(width * 20) / 20, math.ceil(height * 20) / 20  # whole pixels: 0.05 inches are 5
    fig = plt.figure(figsize=(width, height))
    # Notebooks crop a figure to what is drawn. A frame that is drawn but not seen keeps its size.
    fig.add_artist(Rectangle((0, 0), 1, 1, transform=fig.transFigure, fill=False, linewidth=0, edgecolor="none"))
    left, top, bottom = _PAD / width, 1 - _PAD / height, _PAD / height
    if above:
        fig.suptitle("\n".join(above), x=left, y=top, ha="left", va="top", **_TITLE)
    if below:
        fig.text(left, bottom, "\n".join(below), color=GREY, va="bottom")
    return fig, start


def _axes(fig, left, top, width, height):
    """Add axes whose place is given in inches from the figure's upper left corner."""
    full_width, full_height = fig.get_size_inches()
    return fig.add_axes((left / full_width, 1 - (top + height) / full_height, width / full_width, height / full_height))
