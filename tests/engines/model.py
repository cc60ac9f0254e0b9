"""Makes a language model of half a million random weights, with a tokenizer trained on made-up
lines: `model.py FOLDER`. What it says is nonsense; an engine serves it as it serves any other."""

import random
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = "gpu memory kernel tensor queue token latency cache prefix prompt decode batch host".split()

folder = sys.argv[1]
random.seed(1)
torch.manual_seed(0)
lines = [" ".join(random.choice(WORDS) for _ in range(30)) for _ in range(400)]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
special = ["<pad>", "<s>", "</s>"]
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=768, special_tokens=special, initial_alphabet=alphabet)
tokenizer.train_from_iterator(lines, trainer)
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=2048
)
fast.save_pretrained(folder)
config = LlamaConfig(
    vocab_size=len(fast), hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=64, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2,
    pad_token_id=0, tie_word_embeddings=False,
)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, safe_serialization=True)
