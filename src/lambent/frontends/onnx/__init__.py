"""ONNX models as lambent graphs, and lambent graphs as ONNX models."""
