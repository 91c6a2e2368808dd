"""What the four scripts share: names, the bucket, and the marker that a step writes last, so that half a step is none."""

import os
from pathlib import Path

import s3fs
from datasets import load_from_disk

home_dir = home_folder = str(Path.home())
bucket_name = os.environ["BUCKET_NAME"]
dataset_name = os.environ["DATASET_NAME"]
model_name = os.environ["MODEL_NAME"]
storage_options = {
    "key": os.environ["AWS_ACCESS_KEY_ID"],
    "secret": os.environ["AWS_SECRET_ACCESS_KEY"],
    "endpoint_url": os.environ["AWS_ENDPOINT_URL_S3"],
}
tigris = s3fs.S3FileSystem(**storage_options)


def is_done(step):
    return tigris.exists(f"/{bucket_name}/{step}/_DONE")


def mark_done(step):
    tigris.write_text(f"/{bucket_name}/{step}/_DONE", "")


def shards_for(bucket, folder, options):
    shard_id = 0
    while tigris.exists(f"/{bucket}/{folder}/{shard_id}/data.json"):
        yield load_from_disk(f"s3://{bucket}/{folder}/{shard_id}", storage_options=options)
        shard_id += 1
