"""DeepSpeed on the CPU: zero.py STAGE fp32|bf16; two micro-batches a step, clipping."""

import os
import sys

import deepspeed
import torch
from torch import nn

stage, dtype = int(sys.argv[1]), torch.bfloat16 if sys.argv[2] == "bf16" else torch.float32
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    # nothing is so small that ZeRO 3 would leave it whole
    "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
    "bf16": {"enabled": dtype is torch.bfloat16},
}
torch.manual_seed(0)
net = Net()
if "--fault" in sys.argv:
    net.norm.eps = 0.3
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
engine, _, _, _ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
torch.manual_seed(1 + engine.global_rank)
losses = []
for _ in range(6):
    loss = engine(torch.randn(4, 8).to(dtype)).float().square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
with deepspeed.zero.GatheredParameters(list(net.parameters())) if stage == 3 else torch.no_grad():
    total = sum(p.double().abs().sum().item() for p in net.parameters())
sys.stdout.write(f"RESULT {os.environ['RANK']} {losses} {total}\n")  # one write: ranks share the pipe
