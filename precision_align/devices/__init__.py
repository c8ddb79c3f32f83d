"""Where tensors live: cpu, cuda, npu, and a simulated npu on the CPU."""
