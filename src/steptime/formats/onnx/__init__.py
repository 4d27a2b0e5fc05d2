"""Reads networks of ONNX files, without the package onnx."""
