"""The core imports no integration, and a missing package is named in one line."""

import subprocess
import sys

import pytest

PACKAGES = (
    "lightning",
    "pytorch_lightning",
    "transformers",
    "accelerate",
    "timm",
    "torchvision",
    "wandb",
    "tensorboard",
    "ray",
    "datasets",
)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_core_imports_no_integration():
    done = run(
        "import sys, particleaugment.cli.main, particleaugment.report.loggers, particleaugment.integrations\n"
        f"print([name for name in {PACKAGES!r} if name in sys.modules], 'matplotlib' in sys.modules)"
    )
    assert done.stdout.strip() == "[] False", done.stderr


@pytest.mark.parametrize(
    ("package", "module", "extra"),
    [("lightning", "lightning", "lightning"), ("transformers", "transformers", "transformers")],
)
def test_a_missing_package_is_named_with_its_extra(package, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # importing it raises, as if it were not installed
    monkeypatch.delitem(sys.modules, f"particleaugment.integrations.{module}", raising=False)
    with pytest.raises(ImportError) as caught:
        __import__(f"particleaugment.integrations.{module}")
    message = str(caught.value)
    assert message.startswith(f"this needs {package}, which cannot be imported")
    assert message.endswith(f": pip install 'particleaugment[{extra}]'")
    assert "\n" not in message
