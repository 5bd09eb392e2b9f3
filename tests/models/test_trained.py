"""The network of a finished run, used."""

import pytest
import torch
from PIL import Image
from runs import few_digits, finish, no_report, tiny  # noqa: F401
from safetensors.torch import save_file

import particleaugment as pa
from particleaugment.data.folder import load_folder
from particleaugment.recipes import get_recipe
from particleaugment.training import loop
from particleaugment.training.display import Display
from particleaugment.training.run import RunFolder
from particleaugment.training.session import Session
from particleaugment.util.stop import Stop


def test_a_runs_network_gives_the_runs_logits(tiny, no_report, tmp_path, few_digits):  # noqa: F811
    session, _ = finish(tmp_path / "run", "epochs=1", "policy=none")
    model = pa.load_model(tmp_path / "run")
    assert not model.training
    assert model.classes == few_digits.classes
    images = few_digits.test_images
    with torch.inference_mode():
        session.model.eval()
        expected = session.model(pa.Normalize(few_digits.mean, few_digits.std).run(images))
        torch.testing.assert_close(model(images), expected)
    with pytest.raises(ValueError, match=r"expected uint8 images \[N, C, 32, 32\], got torch.float32"):
        model(images.float())


@pytest.mark.parametrize(
    "settings",
    [["stream=false"], ["stream=true", "workers=0"], ["stream=true", "workers=0", "crop_scale=0.3", "crop=0"]],
)
def test_files_are_read_as_the_runs_test_images_were(no_report, tmp_path, settings):  # noqa: F811
    colours = {"lime": (190, 255, 0), "plum": (140, 70, 130), "sky": (130, 200, 230)}
    for name, colour in colours.items():
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(12):
            picture = Image.new("RGB", (40 + number, 30), tuple(max(0, value - 3 * number) for value in colour))
            picture.save(tmp_path / "pictures" / name / f"{number}.png")
    base = [
        "epochs=2",
        "batch_size=9",
        "model=wrn-10-1",
        "image_size=16",
        "policy=none",
        "precision=fp32",
        "erase=0",
        "workers=0",
    ]
    config = get_recipe("folder").override([f"data_dir={tmp_path / 'pictures'}", *base, *settings])
    session = Session(RunFolder.create(tmp_path / "run", config), Display(quiet=True), Stop(), 0.0)
    assert loop.train(session)
    session.close()
    model = pa.load_model(tmp_path / "run" / "model.safetensors")
    assert model.classes == ("lime", "plum", "sky")
    files = [tmp_path / "pictures" / name / "11.png" for name in colours]
    images = model.read(files)
    if "stream=false" in settings:
        data = load_folder(tmp_path / "pictures", 16, quiet=True)
        known = torch.cat([data.train_images, data.test_images])
        assert all((known == image).flatten(1).all(1).any() for image in images)
    else:
        listed = session.data.plain.images
        places = [i for i in range(len(listed)) if listed.path(i) in {str(file) for file in files}]
        for place in places:
            assert (images == session.data.plain[place][0]).flatten(1).all(1).any()
        assert places
    with torch.inference_mode():
        likeliest = model(images).argmax(1).tolist()
    assert model.classify(files) == [model.classes[number] for number in likeliest]


def test_what_is_not_there_or_not_ours(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no .*model.safetensors; a run writes it when it ends"):
        pa.load_model(tmp_path)
    (tmp_path / "model.safetensors").write_text("nothing")
    with pytest.raises(ValueError, match=r"model.safetensors cannot be used"):
        pa.load_model(tmp_path)
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors", {"model": "wrn-10-1"})
    with pytest.raises(ValueError, match=r"metadata lack classes; load its weights into build_model"):
        pa.load_model(tmp_path)
