from datasets import Dataset, load_dataset
from shards import bucket_name, dataset_name, is_done, mark_done, storage_options


def standardize_dataset(ds):
    roles = {"human": "user", "gpt": "assistant"}
    return ds.map(
        lambda rows: {
            "conversations": [
                [{"role": roles[turn["from"]], "content": turn["value"]} for turn in conversation]
                for conversation in rows["conversations"]
            ]
        },
        batched=True,
    )


if not is_done(f"standardized/{dataset_name}"):
    dataset = load_dataset(dataset_name, split="train", streaming=True)
    for shard_id, shard in enumerate(dataset.iter(2)):
        ds = Dataset.from_dict(shard, features=dataset.features)
        ds.save_to_disk(f"s3://{bucket_name}/raw/{dataset_name}/{shard_id}", storage_options=storage_options)
        ds = standardize_dataset(ds)
        ds.save_to_disk(f"s3://{bucket_name}/standardized/{dataset_name}/{shard_id}", storage_options=storage_options)
        print(f"imported shard {shard_id}")
    mark_done(f"standardized/{dataset_name}")
