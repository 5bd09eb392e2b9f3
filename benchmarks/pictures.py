"""Draw the pictures of README and docs.

python benchmarks/pictures.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from accuracy_tables import literal_records, read
from diagrams import layer_diagram, loop_diagram, readable
from PIL import Image
from size_picture import accuracy_by_size
from strip import write_strip
from target_pictures import write_target_gallery

from particleaugment import filter as pf
from particleaugment.compare.comparison_plots import intervals
from particleaugment.core.op_table import OPS
from particleaugment.report.gallery import write_gallery
from particleaugment.report.svg import BLUE, GREEN, INK, ORANGE, PURPLE, RED, inline_svg

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NONZERO, START_VALUE, STEPS = 3, 0.25, 250


def on_white(svg: str) -> str:
    """Give a figure colours of its own: a picture in a file has no page to take them from."""
    return str(svg).replace("<svg ", '<svg style="background: white; color: #222" ', 1)


def literal_run() -> str:
    """Draw d0 of every filter step of the committed run, and the ops per image of every epoch."""
    epochs, all_steps = literal_records()
    steps = [step for step in all_steps if step["d0"] is not None]

    def draw_literal_run(figure: Any, axes: Any) -> None:
        at = np.array([step["epoch"] for step in steps])
        d0 = np.array([step["d0"] for step in steps])
        for chosen, colour, label in ((d0 > 0, GREEN, "fell"), (d0 <= 0, RED, "rose")):
            axes[0].scatter(at[chosen], d0[chosen], s=6, color=colour, label=f"the loss {label}: {chosen.sum()} steps")
        axes[0].axhline(0.0, color=INK, linewidth=0.6)
        axes[0].set(xlabel="epoch", ylabel="d0", yscale="symlog")
        ticks = [-100, -10, 0, 10, 100]
        axes[0].set_yticks(ticks, [str(tick) for tick in ticks])
        axes[0].legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 0.97), ncols=2)
        axes[1].plot(
            [record["epoch"] for record in epochs], [record["ops_per_image"] for record in epochs], color=PURPLE
        )
        axes[1].set(xlabel="epoch", ylabel="ops per image", ylim=(0, None))

    return readable(inline_svg(9, 2.8, draw_literal_run, columns=2))


def comparison_intervals(name: str) -> str:
    """Draw the arms of a committed comparison minus no policy, with intervals."""
    return readable(intervals(read(name).compared_with("none")))


def applied_ops() -> list[float]:
    """Return the mean number of applied ops of 200 particles that nothing selects, step by step."""
    state = pf.sparse_init(num_particles=200, num_ops=len(OPS), nonzero=NONZERO, value=START_VALUE, seed=0)
    found = []
    for step in range(1, STEPS + 1):
        found.append(float(state.particles.sum(1).mean()))
        state = pf.transition(state, sigma=0.05, seed=0, step=step)
    return found


def filter_parts() -> str:
    """Draw the paper's weight factor, and what its transition does to particles that nothing selects."""

    def draw_filter_parts(figure: Any, axes: Any) -> None:
        delta = np.linspace(-1.5, 3.5, 200)
        axes[0].plot(delta, np.tanh(delta - 1) + 1, color=BLUE)
        axes[0].axvline(1.0, color=INK, linewidth=0.6, linestyle=":")
        axes[0].set(xlabel="δ of a particle", ylabel="factor of its weight (η = 1)")
        steps = range(1, STEPS + 1)
        axes[1].plot(steps, applied_ops(), color=ORANGE)
        axes[1].set(xlabel="filter steps without selection", ylabel="applied ops", ylim=(0, None))

    return readable(inline_svg(9, 2.8, draw_filter_parts, columns=2))


def main() -> None:
    (DOCS / "literal-run.svg").write_text(literal_run())
    (DOCS / "filter-parts.svg").write_text(filter_parts())
    for name in ("cifar10-60", "cifar10-250", "cifar100-60", "digits"):
        (DOCS / f"results-{name}.svg").write_text(comparison_intervals(name))
    (DOCS / "loop.svg").write_text(loop_diagram())
    (DOCS / "layers.svg").write_text(layer_diagram())
    (DOCS / "accuracy-by-size.svg").write_text(accuracy_by_size())
    write_gallery(DOCS / "gallery.png")
    with Image.open(DOCS / "gallery.png") as gallery:
        smaller = gallery.quantize(256, dither=Image.Dither.NONE)
    smaller.save(DOCS / "gallery.png", optimize=True)
    write_target_gallery()
    write_strip()


if __name__ == "__main__":
    main()
