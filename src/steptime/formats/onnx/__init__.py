"""Reads networks of ONNX files by the package onnx."""
