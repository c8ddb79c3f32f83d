"""Accelerate: accumulation, clipping, a schedule, its own optimizer wrapper."""

import sys

import torch
from accelerate import Accelerator
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 8))
if "--fault" in sys.argv:
    model[1].eps = 0.3
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(24, 8), batch_size=4)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
losses = []
for batch in loader:
    with accelerator.accumulate(model):
        loss = (model(batch) - batch).square().mean()
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    losses.append(loss.item())
print("RESULT", losses, sum(p.double().abs().sum().item() for p in model.parameters()))
