from shards import home_dir, is_done, mark_done, model_name
from unsloth import FastLanguageModel

if not is_done(f"models/{model_name}"):
    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name = model_name, # Qwen/Qwen2.5-0.5B
        max_seq_length = 4096,
        dtype = None, # auto detection
        load_in_4bit = False, # If True, use 4bit quantization to reduce memory usage
    )

    # Save the model to Tigris
    model.save_pretrained(f"{home_dir}/tigris/models/{model_name}")
    tokenizer.save_pretrained(f"{home_dir}/tigris/models/{model_name}")
    mark_done(f"models/{model_name}")
