"""Write the pictures of README and docs from a run's folder.

particleaugment train digits --out runs/demo
python benchmarks/pictures.py runs/demo
"""

from __future__ import annotations

import sys
from pathlib import Path

from particleaugment.policies import load
from particleaugment.report.gallery import write_gallery
from particleaugment.report.metrics import history
from particleaugment.report.plots import heat_map
from particleaugment.training.run import RunFolder

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    run = RunFolder.open(Path(sys.argv[1]))
    svg = heat_map(history(run.config, run.read_metrics(), load(run.policy)))
    # A picture of its own has no page to take its colours from.
    svg = svg.replace("<svg ", '<svg style="background: white; color: #222" ', 1)
    (DOCS / "heat-map.svg").write_text(svg)
    write_gallery(DOCS / "gallery.png")


if __name__ == "__main__":
    main()
