"""A part compiled by inductor with compile workers of its own, beside parts that are not."""

import sys

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x):
        return self.last(self.norm(torch.compile(torch.nn.functional.gelu)(self.first(x))))


net = Net()
if "--fault" in sys.argv:
    net.norm.eps = 0.3
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
losses = []
for _ in range(3):
    loss = net(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print("RESULT", losses, sum(p.double().abs().sum().item() for p in net.parameters()))
