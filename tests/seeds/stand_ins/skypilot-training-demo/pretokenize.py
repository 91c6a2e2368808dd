import json

from shards import bucket_name, dataset_name, home_dir, is_done, mark_done, model_name, shards_for, storage_options, tigris
from unsloth import FastLanguageModel

_, tokenizer = FastLanguageModel.from_pretrained(f"{home_dir}/tigris/models/{model_name}")


def prechew(examples):
    convos = examples["conversations"]
    texts = [tokenizer.apply_chat_template(convo, tokenize = False, add_generation_prompt = False) for convo in convos]
    return { "text" : texts, }


if not is_done(f"model-ready/{model_name}/{dataset_name}"):
    biggest = -1
    for shard_id, ds in enumerate(shards_for(bucket_name, f"standardized/{dataset_name}", storage_options)):
        ds = ds.map(prechew, batched=True)
        ds.save_to_disk(f"s3://{bucket_name}/model-ready/{model_name}/{dataset_name}/{shard_id}", storage_options=storage_options)
        biggest = shard_id
        print(f"pretokenized shard {shard_id}")

    assert biggest != -1, "No examples were found in the dataset. Are you sure you imported the dataset correctly?"

    tigris.write_text(f"/{bucket_name}/model-ready/{model_name}/{dataset_name}/info.json", json.dumps({"count": shard_id}))
    mark_done(f"model-ready/{model_name}/{dataset_name}")
