"""Stands for unsloth and trl: a model is a number, and training adds to it."""

import json
from pathlib import Path

from datasets import pause


class Tokenizer:
    def apply_chat_template(self, conversation, tokenize, add_generation_prompt):
        turns = (f"<|im_start|>{turn['role']}\n{turn['content']}\n<|im_end|>" for turn in conversation)
        return "\n".join(turns)

    def save_pretrained(self, folder):
        pause()
        (Path(folder) / "tokenizer.json").write_text("{}")


class Model:
    def __init__(self, weight):
        self.weight = weight

    def save_pretrained(self, folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "model.safetensors").write_text(json.dumps(self.weight))
        print(f"saved {Path(folder).name}")

    def save_pretrained_merged(self, folder, tokenizer, save_method):
        assert save_method == "merged_16bit"
        self.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


class FastLanguageModel:
    @staticmethod
    def from_pretrained(model_name, *_, **options):
        folder = Path(model_name)
        weight = json.loads((folder / "model.safetensors").read_text()) if folder.is_absolute() else 1
        return Model(weight), Tokenizer()

    @staticmethod
    def get_peft_model(model, *_):
        return model[0]


class SFTTrainer:
    def __init__(self, model, tokenizer, train_dataset, dataset_text_field):
        self._model, self._texts = model, train_dataset.rows[dataset_text_field]

    def train(self):
        pause()
        self._model.weight += sum(len(text) for text in self._texts)
        return {"loss": 1 / self._model.weight}
