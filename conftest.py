"""Make nbval compare figures too, and the order of a cell's outputs.

nbval compares every text output exactly, but no PNG, and not the order in which text and figures come. Here its
comparison gets both. BOOK_COMPARE_FIGURES=0 leaves out the pixels, not the number of figures: another matplotlib draws
other pixels.
"""

import os

from nbval.plugin import IPyNbCell

from scripts import figures_equal

COMPARE_PIXELS = os.environ.get("BOOK_COMPARE_FIGURES", "1") != "0"


def figures(outputs):
    """Return the PNGs of a cell, in order."""
    return [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]


def kinds(outputs):
    """Return what each output is, in order: a stream's name or its MIME types."""
    return [output.get("name") or ", ".join(sorted(output.get("data", {}))) or "error" for output in outputs]


def what_differs(stored, fresh):
    """Say how the figures or the order of two outputs differ, or return None."""
    one, other = figures(stored), figures(fresh)
    if len(one) != len(other):
        return f"the number of figures was {len(one)} and is now {len(other)}"
    for before, after in zip(one, other, strict=True):
        problem = figures_equal.disagreement(before, after) if COMPARE_PIXELS else None
        if problem:
            return problem
    if kinds(stored) != kinds(fresh):
        return f"the outputs came in the order {kinds(stored)} and now come in the order {kinds(fresh)}"
    return None


compare_text = IPyNbCell.compare_outputs


def compare_outputs(self, test, ref, skip_compare=None):
    """Compare text as nbval does, then figures and order; `test` is what came now, `ref` what is stored."""
    if not compare_text(self, test, ref, skip_compare):
        return False
    problem = what_differs(ref, test)
    if problem:
        self.comparison_traceback.append(f"{self.colors.FAIL}{problem}{self.colors.ENDC}")
    return problem is None


IPyNbCell.compare_outputs = compare_outputs
