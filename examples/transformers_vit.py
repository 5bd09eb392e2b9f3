"""A small ViT from scratch with Hugging Face's Trainer. Run: python examples/transformers_vit.py"""

from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import particleaugment as pa
from particleaugment.data import load_digits
from particleaugment.integrations.transformers import AugmentCollator, ParticleAugmentCallback

data = load_digits()
test = list(zip(data.test_images, data.test_labels))  # no ids: these are not augmented
shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
model = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=10, **shape))


def preprocess(images):
    return images / 127.5 - 1


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


search = pa.ParticleAugment((data.train_images, data.train_labels), epochs=8, seed=0)
arguments = TrainingArguments(
    "runs/vit", num_train_epochs=8, per_device_train_batch_size=32, learning_rate=2e-3, warmup_steps=40,
    eval_strategy="epoch", save_strategy="epoch", save_total_limit=1, report_to="none",
)  # fmt: skip
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=search.training_set(),  # ids: these are augmented
    eval_dataset=test,
    data_collator=AugmentCollator(search, preprocess),
    compute_metrics=accuracy,
    callbacks=[ParticleAugmentCallback(search, preprocess)],
)
trainer.train()  # with resume_from_checkpoint=True the search resumes too
print(search, trainer.state.log_history[-2]["eval_accuracy"])
