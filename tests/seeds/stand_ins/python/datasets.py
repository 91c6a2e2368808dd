"""Stands for Hugging Face's datasets: a small data set, and shards of it in a bucket."""

import json
import sys
import time
from pathlib import Path

import s3fs

QUESTIONS = [f"What is {n} and {n}?" for n in range(6)]


def pause():
    """Work takes as long as the test wants it to."""
    time.sleep(float((Path(sys.prefix) / "seconds-per-shard").read_text()))


class Dataset:
    def __init__(self, rows):
        self.rows = rows

    @classmethod
    def from_dict(cls, rows, features=None):
        assert set(rows) == set(features)
        return cls(rows)

    def map(self, function, batched):
        assert batched
        return Dataset({**self.rows, **function(self.rows)})

    def save_to_disk(self, url, storage_options):
        pause()
        client = s3fs.client(**storage_options)
        client.put_object(**s3fs.split(f"{url}/data.json"), Body=json.dumps(self.rows).encode())


def load_from_disk(url, storage_options):
    found = s3fs.client(**storage_options).get_object(**s3fs.split(f"{url}/data.json"))
    return Dataset(json.loads(found["Body"].read()))


class IterableDataset:
    features = ("conversations",)

    def iter(self, batch_size):
        for begin in range(0, len(QUESTIONS), batch_size):
            asked = QUESTIONS[begin : begin + batch_size]
            yield {
                "conversations": [
                    [{"from": "human", "value": one}, {"from": "gpt", "value": "A sum."}] for one in asked
                ]
            }


def load_dataset(name, split, streaming):
    assert (name, split, streaming) == ("mlabonne/FineTome-100k", "train", True)
    return IterableDataset()
