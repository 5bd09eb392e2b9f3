"""Networks by name: those that are listed, and what is said of names that are none."""

import pytest
import torch
from typer.testing import CliRunner

from particleaugment.cli.main import app
from particleaugment.models import MODELS, PATTERNS, build_model
from particleaugment.recipes import RECIPES


@pytest.mark.parametrize("name", MODELS)
def test_every_listed_model_can_be_built(name):
    with torch.device("meta"):
        model = build_model(name, num_classes=7, seed=0)
    assert model.head.out_features == 7


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("wrn28-10", "did you mean wrn-28-10"),
        ("ShakeShake-26-2x96d", "did you mean shake-shake-26-2x96d"),
        ("shake-shake-26-2x96", "the form is shake-shake-DEPTH-2xWIDTHd, like shake-shake-26-2x32d"),
        ("wrn-10-x", "the form is wrn-DEPTH-WIDTH, like wrn-10-1$"),
        ("wrn-10", "the form is wrn-DEPTH-WIDTH, like wrn-10-1$"),
        ("resnet50", "did you mean resnet-50"),
        ("vit", "the models are named like wrn-10-1, wrn-28-2, wrn-28-10, shake-shake"),
        ("resnet-34", "depth must be 18 or 50, got 34"),
        ("shake-shake-25-2x32d", r"depth must be 6n \+ 2"),
    ],
)
def test_an_unknown_model_is_named_with_its_nearest(name, hint):
    with pytest.raises(ValueError, match=hint):
        build_model(name, num_classes=10, seed=0)


def test_models_that_recipes_use_are_listed_with_the_patterns():
    lines = CliRunner().invoke(app, ["list"]).output.splitlines()
    shown = " ".join(lines[lines.index("Models (--set model=NAME)") + 1 :]).replace(",", " ").split()
    assert {make().config.model for make in RECIPES.values()} <= set(shown)
    assert set(PATTERNS) <= set(shown)
