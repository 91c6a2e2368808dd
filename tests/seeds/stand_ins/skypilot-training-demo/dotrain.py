from shards import bucket_name, dataset_name, home_dir, home_folder, is_done, mark_done, model_name, shards_for, storage_options
from unsloth import FastLanguageModel, SFTTrainer

_, tokenizer = FastLanguageModel.from_pretrained(f"{home_dir}/tigris/models/{model_name}")
if not is_done(f"done/{model_name}/{dataset_name}"):
    model = FastLanguageModel.from_pretrained(f"{home_folder}/tigris/models/{model_name}", ...)

    # Make a LoRA model stacked on top of the base model, this is what we train and
    # save for later use.
    model = FastLanguageModel.get_peft_model(model, ...) # other generic LoRA parameters here

    for shard_id, dataset in enumerate(shards_for(bucket_name, f"model-ready/{model_name}/{dataset_name}", storage_options)):
        trainer = SFTTrainer(model = model, tokenizer = tokenizer, train_dataset = dataset, dataset_text_field = "text")
        trainer_stats = trainer.train()
        print(f"trained shard {shard_id}", trainer_stats)

    # Save the LoRA model for later use
    model.save_pretrained(f"{home_dir}/tigris/done/{model_name}/{dataset_name}/lora_model")
    tokenizer.save_pretrained(f"{home_dir}/tigris/done/{model_name}/{dataset_name}/lora_model")

    # Save the LoRA fused to the base model for inference with vllm
    model.save_pretrained_merged(f"{home_dir}/tigris/done/{model_name}/{dataset_name}/fused", tokenizer, save_method="merged_16bit")
    mark_done(f"done/{model_name}/{dataset_name}")
