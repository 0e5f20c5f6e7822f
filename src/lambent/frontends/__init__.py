"""What others wrote becomes graphs, weights and configurations: files of weights, ONNX, PyTorch."""
