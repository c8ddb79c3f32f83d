"""transformers' Trainer: two micro-batches a step, clipping, a schedule; resumed from a checkpoint if asked."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
torch.set_num_threads(1)
sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 32}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2))
rows = [torch.randint(0, 64, (12,)) for _ in range(16)]
if "--fault" in sys.argv:
    model.model.layers[1].post_attention_layernorm.variance_epsilon = 1e-2
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=5 if "--resume" in sys.argv else 3,
    save_steps=3,
    report_to=[],
    logging_steps=1,
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
trainer.train(resume_from_checkpoint="--resume" in sys.argv)
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print("RESULT", losses, sum(p.double().abs().sum().item() for p in model.parameters()))
