"""Megatron-core's GPT on the CPU: --bf16, --distributed (optimizer), --recompute, --pipeline (2 ranks, interleaved).

What it asks of CUDA is answered for the CPU: where tensors go, names of tensor types, and generators' states.
"""

import contextlib
import os
import sys

import torch
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        result = func(*args, **kwargs)
        is_name = func is torch.Tensor.type and isinstance(result, str)
        return result.replace("torch.", "torch.cuda.") if is_name else result


class NoTracker:
    @contextlib.contextmanager
    def fork(self, name=""):
        yield

    def is_initialized(self):
        return True

    def get_states(self):
        return {}

    def set_states(self, states):
        pass


OnCpu().__enter__()
torch.cuda.current_device = lambda: torch.device("cpu")
torch.cuda.synchronize = lambda *_: None
torch.distributed.init_process_group("gloo")

from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import random as generators
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

generators._CUDA_RNG_STATE_TRACKER, generators._CUDA_RNG_STATE_TRACKER_INITIALIZED = NoTracker(), True
generators._get_cuda_rng_state = lambda *_, **__: torch.zeros(1)
generators._set_cuda_rng_state = lambda *_, **__: None

flags = set(sys.argv[1:])
bf16, distributed, pipeline = "--bf16" in flags, "--distributed" in flags, "--pipeline" in flags
recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
chunks = 2 if pipeline else 1
if pipeline:
    parallel_state.initialize_model_parallel(1, 2, virtual_pipeline_model_parallel_size=2)
else:
    parallel_state.initialize_model_parallel()
torch.set_num_threads(1)
config = TransformerConfig(
    num_layers=4 if pipeline else 2,
    hidden_size=16,
    num_attention_heads=2,
    ffn_hidden_size=32,
    use_cpu_initialization=True,
    attention_dropout=0.0,
    hidden_dropout=0.0,
    bf16=bf16,
    params_dtype=torch.bfloat16 if bf16 else torch.float32,
    pipeline_dtype=torch.bfloat16 if bf16 else torch.float32,
    add_bias_linear=False,
    gradient_accumulation_fusion=False,
    bias_activation_fusion=False,
    bias_dropout_fusion=False,
    apply_rope_fusion=False,
    masked_softmax_fusion=False,
    persist_layer_norm=False,
    deallocate_pipeline_outputs=True,
    batch_p2p_comm=False,
    pipeline_model_parallel_size=chunks,
    virtual_pipeline_model_parallel_size=2 if pipeline else None,
    **(recompute if "--recompute" in flags else {}),
)
rank = torch.distributed.get_rank()
model = []
for chunk in range(chunks):
    torch.manual_seed(10 * chunk + rank if pipeline else 0)
    first, last = chunk + rank == 0 or not pipeline, chunk + rank == 2 or not pipeline
    place = {"pre_process": first, "post_process": last, "vp_stage": chunk} if pipeline else {}
    spec = get_gpt_layer_local_spec()
    part = GPTModel(config, spec, 64, 16, position_embedding_type="learned_absolute", **place)
    if "--fault" in flags and last:
        part.decoder.layers[-1].self_attention.core_attention.softmax_scale *= 1.1
    part = Float16Module(config, part) if bf16 else part
    wrapping = DistributedDataParallelConfig(use_distributed_optimizer=distributed, grad_reduce_in_fp32=True)
    model.append(DistributedDataParallel(config, wrapping, part))
settings = OptimizerConfig(
    optimizer="adam",
    lr=0.01,
    bf16=bf16,
    params_dtype=config.params_dtype,
    use_distributed_optimizer=distributed,
    clip_grad=1.0,
)
optimizer = get_megatron_optimizer(settings, model)
torch.manual_seed(5 if pipeline else 5 + rank)


def step(iterator, module):
    tokens = next(iterator)
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool).triu(1)
    out = module(tokens, torch.arange(8).expand(2, 8), mask, labels=tokens)
    return out, lambda losses: (losses.float().mean(), {"loss": losses.detach().float().mean()})


losses = []
for _ in range(3):
    for part in model:
        part.zero_grad_buffer()
    optimizer.zero_grad()
    batches = [torch.randint(0, 64, (2, 8)) for _ in range(2)]
    iterators = [iter(batches) for _ in model]
    found = get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=iterators if pipeline else iterators[0],
        model=model if pipeline else model[0],
        num_microbatches=2,
        seq_length=8,
        micro_batch_size=2,
        forward_only=False,
    )
    finalize_model_grads(model)
    optimizer.step()
    losses.append([entry["loss"].item() for entry in found])
total = sum(p.double().abs().sum().item() for part in model for p in part.parameters())
sys.stdout.write(f"RESULT {os.environ['RANK']} {losses} {total}\n")
torch.distributed.barrier()
torch.distributed.destroy_process_group()
